"""Source lines: the line of the user's code that calls an operator or raises an error."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import CodeType, FrameType

import torch

_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_HERE = f"{Path(__file__).parents[1]}{os.sep}"


def calling_line(entrance: CodeType) -> str:
    """The innermost line of user code on the stack, up to the code that calls the model.

    Empty when everything up to ``entrance`` belongs to torch or to this package.
    """
    frame: FrameType | None = sys._getframe(1)
    # from the inside to the outside; code objects are compared, as names may repeat
    while frame is not None and frame.f_code is not entrance:
        if _is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def raising_line(error: BaseException) -> str:
    """The innermost line of user code that an error has passed."""
    line, trace = "", error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if _is_users(filename):
            line = f"{filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line


def _is_users(filename: str) -> bool:
    return not filename.startswith((_TORCH, _HERE, "<"))
