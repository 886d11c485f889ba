"""ELK, the layout library of the HTML page, run by a JavaScript engine inside Python."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from ...errors import MissingPackageError

#: The globals that elkjs expects in a worker. The timer calls back at once, so the layout runs
#: synchronously and the answer is there when ``postMessage`` returns.
_BEGIN = (
    "var global = globalThis; var exports = {}; var module = {exports: exports};"
    "var setTimeout = function (call) { call(); return 0; };"
)
_ASK = """
(function (graph) {
  var answer = null, worker = new module.exports.Worker();
  worker.onmessage = function (message) { answer = message.data; };
  worker.postMessage({id: 0, cmd: 'register', algorithms: ['layered']});
  worker.postMessage({id: 1, cmd: 'layout', graph: graph});
  return JSON.stringify(answer);
})
"""


def lay_out(graph: dict[str, Any]) -> dict[str, Any]:
    """The graph (in ELK's JSON) with coordinates for all its elements.

    Raises:
        MissingPackageError: the JavaScript engine is not installed.
    """
    try:
        from py_mini_racer import MiniRacer
    except ImportError as error:
        raise MissingPackageError(
            "the layout of SVG and PNG is computed by the package mini-racer, which is not "
            "installed",
            remedy='pip install "autoeidetic[viz]", or write .html, .dot, .mmd or .json instead',
        ) from error
    library = resources.files("autoeidetic.draw") / "page" / "vendor" / "elk-worker.min.js"
    with MiniRacer() as engine:
        engine.eval(_BEGIN)
        engine.eval(f"(function () {{{library.read_text()}}})()")
        answer = json.loads(str(engine.eval(f"{_ASK}({json.dumps(graph)})")))
    if "error" in answer:
        raise RuntimeError(f"the layout failed: {json.dumps(answer['error'])[:500]}")
    result: dict[str, Any] = answer["data"]
    return result
