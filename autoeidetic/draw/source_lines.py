"""Source lines in a short form that is the same on every machine."""

from __future__ import annotations

import re


def short(line: str) -> str:
    """``file:number`` without the folders above the package or project.

    >>> short("/opt/venv/lib/python3.11/site-packages/timm/models/resnet.py:212")
    'timm/models/resnet.py:212'
    >>> short("/home/someone/project/models/net.py:7")
    'models/net.py:7'
    """
    # Of the user's own code the last two parts: enough to find the file, the same everywhere.
    path = line.replace("\\", "/")
    installed = re.split(r"/(?:site|dist)-packages/", path)
    return installed[-1] if len(installed) > 1 else "/".join(path.split("/")[-2:])
