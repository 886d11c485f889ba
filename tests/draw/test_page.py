"""The interactive page in a real browser."""

from __future__ import annotations

import base64
import json
import re
import shutil
import time
from collections.abc import Iterator
from functools import cache
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import sketches
import timm
import torch

from autoeidetic import analyze
from autoeidetic.draw import describe
from autoeidetic.draw.formats.html import to_html

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="needs Debian's chromium and chromium-driver"
    ),
]
ARGUMENTS = "headless=new no-sandbox disable-gpu disable-dev-shm-usage hide-scrollbars".split()
PATIENCE = 30.0
TIMES = "\N{MULTIPLICATION SIGN}"


class Page:
    """A drawing in the browser, and what a reader does with it."""

    def __init__(self, browser: Any, folder: Path) -> None:
        self.browser, self.folder = browser, folder

    def open(self, drawing: dict[str, Any], link: str = "") -> int:
        """Opens the page from a file; milliseconds until the drawing stood."""
        path = self.folder / "page.html"
        path.write_text(to_html(drawing), encoding="utf-8")
        self.browser.get("about:blank")  # a change of the part after # alone would not load it
        self.browser.get(f"{path.as_uri()}{link}")
        self.until("return document.documentElement.dataset.ready !== undefined")
        return int(self.run("return document.documentElement.dataset.ready"))

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def until(self, script: str, *arguments: Any) -> None:
        limit = time.monotonic() + PATIENCE
        while not self.run(script, *arguments):
            assert time.monotonic() < limit, f"never true: {script}"
            time.sleep(0.02)

    def all(self, selector: str) -> list[Any]:
        return self.browser.find_elements("css selector", selector)

    def one(self, selector: str) -> Any:
        return self.browser.find_element("css selector", selector)

    def ids(self, selector: str = ".box") -> set[str]:
        script = "return [...graph.querySelectorAll(arguments[0])].map((e) => e.dataset.id)"
        return set(self.run(script, selector))

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        return self.run(script, selector)

    def box(self, id: str) -> Any:
        return self.one(f'.box[data-id="{id}"]')

    def shows(self, *ids: str) -> None:
        script = "return arguments[0].every((i) => document.querySelector(`.box[data-id='${i}']`))"
        self.until(script, list(ids))

    def hides(self, *ids: str) -> None:
        script = "return !arguments[0].some((i) => document.querySelector(`.box[data-id='${i}']`))"
        self.until(script, list(ids))

    def open_everything(self) -> None:
        while self.all(".closed") or self.all(".times"):
            count = len(self.ids())
            if badges := self.all(".times"):
                self.run(
                    "arguments[0].dispatchEvent(new Event('click', {bubbles: true}))", badges[0]
                )
            else:
                self.one("#open-all").click()
            self.until("return graph.querySelectorAll('.box').length > arguments[0]", count)

    def press(self, *keys: str) -> None:
        ActionChains(self.browser).send_keys(*keys).perform()

    def link(self) -> str:
        return self.run("return decodeURIComponent(location.hash)")

    def panel(self) -> str:
        return self.one("#panel").text

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.browser.get_log("browser")]


def resize(browser: Any, width: int, height: int) -> None:
    """The size of the page itself, without the frame of a window."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def start_browser() -> Any:
    """One that keeps what pages complain about."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ARGUMENTS:
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(DRIVER))
    resize(started, 1280, 720)
    return started


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    started = start_browser()
    yield started
    started.quit()


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Iterator[Page]:
    page = Page(browser, tmp_path)
    yield page
    assert page.complaints() == []


@cache
def drawn(name: str) -> dict[str, Any]:
    model = timm.create_model(name)
    return json.loads(json.dumps(describe(analyze(model, torch.randn(2, 3, 64, 64))).to_dict()))


def stream(drawing: dict[str, Any]) -> dict[str, Any]:
    """The group with most operators that couple it."""
    return max(drawing["groups"], key=lambda group: len(group["couplers"]))


def owned(page: Page, label: str) -> list[float]:
    """Parts of a layer's bar that each task takes."""
    script = """
      const boxes = [...document.querySelectorAll(".box")];
      const box = boxes.find((box) => box.textContent.includes(arguments[0]));
      const all = Number(box.querySelector(".bar .free").getAttribute("width"));
      return [...box.querySelectorAll(".owned")].map((r) => parseFloat(r.style.width) / all);"""
    return page.run(script, label)


def test_page_is_one_small_file() -> None:
    text = to_html(drawn("resnet50") | {"title": "R\u00e9s"})
    assert len(text) < 1_000_000
    assert text.isascii()
    for outside in ('src="', "@import", "url(http", 'href="http', "<link"):
        assert outside not in text


def test_first_view_is_readable(page: Page) -> None:
    page.open(drawn("resnet50"))
    assert 12 <= len(page.ids()) <= 64
    assert page.run("return graph.dataset.level") == "near"
    assert set(page.texts(".times")) == {f"{TIMES} {count}" for count in (2, 3, 5)}


def test_modules_open_and_close(page: Page) -> None:
    page.open(sketches.repeated())
    inner = page.box("m3")  # blocks.0.mlp
    assert inner.get_attribute("aria-expanded") == "true"
    inner.find_element("css selector", ".switch").click()
    page.hides("n2")
    ActionChains(page.browser).double_click(page.box("m3")).perform()
    page.shows("n2", "n3")
    page.run("document.querySelector('.box[data-id=m3]').focus()")
    page.press(Keys.ENTER)
    page.hides("n2")
    assert page.box("m3").get_attribute("aria-expanded") == "false"


def test_edges_of_closed_modules_are_one(page: Page) -> None:
    page.open(sketches.repeated())
    before = len(page.all(".edge .tip"))
    page.box("m3").find_element("css selector", ".switch").click()
    page.hides("n2")
    assert len(page.all(".edge .tip")) < before


def test_equal_blocks_unfold(page: Page) -> None:
    page.open(sketches.repeated(4))
    blocks = ["m2", "m4", "m6", "m8"]
    assert page.ids() & set(blocks) == {"m2"}
    assert page.texts(".times") == [f"{TIMES} 4"]
    page.one(".times").click()
    page.shows(*blocks)
    page.run("document.querySelector('.box[data-id=m4]').focus()")
    page.press("u")
    page.hides(*blocks[1:])


def test_search_opens_and_centres(page: Page) -> None:
    page.open(sketches.repeated(4))
    page.press("/")
    page.press("fc2")
    options = page.all("#results [role=option]")
    assert len(options) == 4
    page.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ENTER)
    page.until("return document.querySelector('.box.selected') !== null")
    chosen = page.ids(".box.selected")
    path = next(n["path"] for n in sketches.repeated(4)["nodes"] if {n["id"]} == chosen)
    assert path == "blocks.2.mlp.fc2"  # it was folded away
    assert page.link() == f"#layer={path}"
    page.until("""
      const box = document.querySelector('.box.selected').getBoundingClientRect();
      const frame = document.getElementById('graph').getBoundingClientRect();
      return Math.abs(box.x + box.width / 2 - frame.x - frame.width / 2) < 3
        && Math.abs(box.y + box.height / 2 - frame.y - frame.height / 2) < 3""")


def test_search_finds_operators(page: Page) -> None:
    page.open(sketches.tasks())
    page.press("/")
    page.press("sigmoid")
    assert [option.text.split() for option in page.all("#results li")] == [
        ["gate", "aten.sigmoid", "operator"]
    ]
    page.press(Keys.ENTER)
    page.until("return document.querySelector('.box.selected') !== null")
    assert "Operator" in page.panel()


def test_residual_stream_has_the_members_of_the_analysis(page: Page) -> None:
    drawing = drawn("resnet18")
    group = stream(drawing)
    page.open(drawing, f"#group={group['id']}")
    while page.all(".open"):  # closed modules say how many members they hold
        count = len(page.ids())
        page.press("c")
        page.until("return graph.querySelectorAll('.box').length < arguments[0]", count)
    counts = page.texts(".count text")
    assert 0 < len(counts) < len(page.ids(".members")) < len(group["nodes"])
    alone = len(page.ids(".members")) - len(counts)
    assert sum(map(int, counts)) + alone == len(group["nodes"])
    page.open_everything()
    assert page.ids(".faces > .box") == {node["id"] for node in drawing["nodes"]}
    assert page.ids(".members") == set(group["nodes"])
    assert page.ids(".couplers") == set(group["couplers"])
    assert page.ids(".readers") == set(group["readers"])
    assert not page.all(".count text")


def test_pointing_lights_the_group_of_a_layer(page: Page) -> None:
    drawing = drawn("resnet18")
    group = stream(drawing)
    page.open(drawing)
    layer = next(id for id in group["nodes"] if id in page.ids())
    ActionChains(page.browser).move_to_element(page.box(layer)).perform()
    assert "focused" in page.one("#graph").get_attribute("class")
    assert layer in page.ids(".members")
    assert page.ids(".faces > .box") - page.ids(".faces > .lit")
    node = next(node for node in drawing["nodes"] if node["id"] == layer)
    sources = {edge["source"] for edge in drawing["edges"] if edge["target"] == node["id"]}
    assert page.ids(".reads") == sources & page.ids()
    ActionChains(page.browser).move_to_element(page.one("#title")).perform()
    page.until("return !graph.classList.contains('focused')")


def test_details_say_what_is_known(page: Page) -> None:
    drawing = drawn("resnet18")
    page.open(drawing, "#layer=layer1.0.conv1")
    text = page.panel()
    for fact in (
        "layer1.0.conv1",
        "Conv2d",
        TIMES.join(("2", "64", "16", "16")),
        "36,864",
        "resnet.py:",
        "Read by",
    ):
        assert fact in text
    page.run("""
      Object.defineProperty(navigator, "clipboard", {value: undefined});
      document.execCommand = () => { window.copied = document.activeElement.value; };""")
    page.one("[data-copy='layer1.0.conv1']").click()
    assert page.run("return window.copied") == "layer1.0.conv1"


def test_links(page: Page) -> None:
    drawing = drawn("resnet18")
    wanted = next(n for n in drawing["nodes"] if n["path"] == "layer4.1.conv2")
    page.open(drawing, "#layer=layer4.1.conv2")
    assert page.ids(".box.selected") == {wanted["id"]}
    page.run("location.hash = 'module=layer2'")
    page.until("return document.querySelector('#panel h2').textContent === 'layer2'")
    page.press(Keys.ESCAPE)
    assert page.link() == ""
    page.open(drawing, "#layer=nowhere")
    assert "is not in this drawing" in page.one("#live").get_attribute("textContent")


def test_locked_parts_say_why(page: Page) -> None:
    page.open(sketches.tasks(), "#layer=norm")
    box = page.one(".box.selected")
    assert "locked" in box.get_attribute("class")
    assert box.find_elements("css selector", ".icon.lock")
    assert "softmax at net.py:9" in page.panel()
    assert "softmax at net.py:9" in box.get_attribute("aria-label")


def test_kinds_of_edges_differ(page: Page) -> None:
    page.open(sketches.tasks())
    script = """
      const look = getComputedStyle(document.querySelector(`.lines .${arguments[0]} .line`));
      return [look.strokeDasharray, look.strokeWidth].join();"""
    kinds = ["consumes", "coupled", "gates", "normalises"]
    assert len({page.run(script, kind) for kind in kinds}) == 4
    assert [item.text for item in page.all("#legend li")][:4] == kinds


def test_task_slider_changes_bars(page: Page) -> None:
    page.open(sketches.tasks())
    assert owned(page, "first") == pytest.approx([1 / 2, 1 / 4, 1 / 8], abs=1e-3)
    page.one("#task").send_keys(Keys.ARROW_LEFT)
    assert owned(page, "first") == pytest.approx([1 / 2, 1 / 4, 0], abs=1e-3)
    assert "After cars" in page.one("#task-name").text
    assert page.link() == "#task=2"
    page.open(sketches.tasks(), "#task=0")
    assert owned(page, "second") == [0, 0, 0]
    page.press("]")
    assert owned(page, "second") == pytest.approx([1 / 4, 0, 0], abs=1e-3)


def test_heat_map_shows_blocks(page: Page) -> None:
    page.open(sketches.tasks(), "#layer=first&task=2")
    page.one(".blocks summary").click()
    script = "return [...document.querySelectorAll('.heat .cell')].map((c) => c.classList[1])"
    zeroed, free, frozen, reusable = "zeroed", "free", "frozen", "reusable"
    assert page.run(script) == [
        *(frozen, frozen, zeroed, zeroed, zeroed),  # birds: inputs, birds, then later tasks
        *(frozen, frozen, frozen, zeroed, zeroed),
        *(reusable, reusable, reusable, free, free),  # flowers are not learned yet
        *(reusable, reusable, reusable, free, free),
    ]


def test_what_leaves_with_a_task(page: Page) -> None:
    drawing = sketches.leaving()
    first, second = drawing["ownership"]["leaving"]["nodes"]
    page.open(drawing, f"#node={first}&task=0")
    assert owned(page, "first") == pytest.approx([1 / 4], abs=1e-3)
    assert owned(page, "second") == [0]
    assert page.ids(".box.gone") == {second}
    assert "4 / 8 units · 16 / 64" in " ".join(page.box(first).text.split())
    assert page.one("#task-name").text == "16 of 1,280 parameters leave with birds"
    assert page.texts(".tick-free") == ["stays"]
    assert not page.one(".player").is_displayed()
    panel = " ".join(page.panel().split())
    assert "Leaves with birds / all Units 4 / 8 Parameters 16 / 64" in panel
    assert "Owned by" not in panel
    page.press("[")
    assert owned(page, "first") == pytest.approx([1 / 4], abs=1e-3)
    page.press(Keys.ESCAPE)
    assert "Leaving parameters 16 / 1,280" in " ".join(page.panel().split())
    script = "return getComputedStyle(arguments[0]).opacity"
    page.until(f"{script} === '0.3'", page.box(second))
    page.until(f"{script} === '1'", page.box(first))
    assert {page.run(script, line) for line in page.all(".lines > .gone")} == {"0.3"}


def test_hostile_names_stay_text(page: Page) -> None:
    page.browser.execute_cdp_cmd(
        "Page.addScriptToEvaluateOnNewDocument",
        {"source": "window.ran = 0; window.alert = () => { window.ran += 1; };"},
    )
    page.open(sketches.hostile())
    heading = "return document.querySelector('#panel h2').textContent === arguments[0]"
    for index, name in enumerate(sketches.HOSTILE):
        page.run("location.hash = arguments[0]", f"node=n{index + 1}")
        page.until(heading, f"{name}.{name}")
        page.run("location.hash = arguments[0]", f"group=g{index}")
        page.until(heading, name)
    page.press("/")
    page.press("script")
    assert page.all("#results li")
    assert page.run("return window.ran") == 0
    assert page.browser.title == sketches.HOSTILE[2]
    assert not page.all("img")
    assert len(page.all("script")) == 3


def test_policy_forbids_other_scripts(page: Page) -> None:
    page.open(sketches.tasks())
    page.run("""
      const script = document.createElement("script");
      script.textContent = "window.intruder = true";
      document.body.append(script);""")
    assert page.run("return window.intruder") is None
    (refused,) = page.complaints()
    assert "Content Security Policy" in refused


def test_failure_is_shown_in_place(page: Page) -> None:
    page.open(sketches.failed())
    banner = page.one("#banner").text
    for part in ("aten.mystery has no rule", "net.py:12", "Register one"):
        assert part in banner
    (box,) = page.texts(".box.failure")
    assert "aten.mystery" in box
    page.one("#banner button").click()
    page.until("return document.querySelector('.box.failure.selected') !== null")
    assert "Register one" in page.panel()


def test_light_and_dark(page: Page) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    page.open(sketches.tasks())
    ground = "return getComputedStyle(document.body).backgroundColor"
    dark = page.run(ground)
    assert page.run("return document.documentElement.dataset.theme") == "dark"
    page.one("#theme").click()
    assert page.run("return document.documentElement.dataset.theme") == "light"
    assert page.run(ground) != dark
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_keys(page: Page) -> None:
    page.open(sketches.tasks())
    page.press(Keys.ARROW_DOWN)
    first = page.ids(".box.selected")
    page.press(Keys.ARROW_DOWN)
    assert len(first) == 1
    assert page.ids(".box.selected") not in (first, set())
    assert page.run("return document.activeElement.dataset.id") in page.ids(".box.selected")
    page.press(Keys.ESCAPE)
    assert not page.ids(".box.selected")
    zoom = "return Number(/scale\\(([^)]+)/.exec(world.getAttribute('transform'))[1])"
    fitted = page.run(zoom)
    page.press("+")
    page.until(f"{zoom} > arguments[0] * 1.25".replace("return ", "return (") + ")", fitted)
    page.press("f")
    page.until(f"return Math.abs(({zoom[7:]}) - arguments[0]) < 1e-6", fitted)
    page.press("?")
    assert page.one("#help").is_displayed()
    page.press(Keys.ESCAPE)
    assert not page.one("#help").is_displayed()


def test_wheel_and_drag_move_the_picture(page: Page) -> None:
    page.open(sketches.tasks())
    transform = "return world.getAttribute('transform')"
    before = page.run(transform)
    canvas = page.one("#graph")
    ActionChains(page.browser).scroll_from_origin(
        webdriver.common.actions.wheel_input.ScrollOrigin.from_element(canvas), 0, 300
    ).perform()
    page.until(f"{transform} !== arguments[0]", before)
    before = page.run(transform)
    drag = ActionChains(page.browser).move_to_element_with_offset(canvas, -300, -200)
    drag.click_and_hold().move_by_offset(80, 40).release().perform()
    page.until(f"{transform} !== arguments[0]", before)
    assert not page.ids(".box.selected")


def test_readers_of_the_screen(page: Page) -> None:
    page.open(drawn("resnet18"))
    unnamed = """
      const named = (e) => e.getAttribute("aria-label") || e.textContent.trim();
      return [...document.querySelectorAll("button, [role=button], summary, input")]
        .filter((e) => !named(e)).map((e) => e.outerHTML);"""
    assert page.run(unnamed) == []
    assert len(page.all('#graph .box[tabindex="0"]')) == 1
    page.press(Keys.ARROW_DOWN)
    spoken = page.one("#live").get_attribute("textContent")
    assert page.one(".box.selected").get_attribute("aria-label") in spoken
    page.press(Keys.ESCAPE)
    assert "Groups written by several layers" in page.panel()


def saved(page: Page, kind: str) -> bytes:
    """What an export button hands to the browser."""
    page.run("""
      window.saved = null;
      HTMLAnchorElement.prototype.click = () => {};
      const make = URL.createObjectURL;
      URL.createObjectURL = (blob) => {
        const reader = new FileReader();
        reader.onload = () => { window.saved = reader.result.split(",")[1]; };
        reader.readAsDataURL(blob);
        return make(blob);
      };""")
    page.one(".menu summary").click()
    page.run("window.saved = null")
    page.one(f"[data-export={kind}]").click()
    if kind == "PNG":  # the picture is made by way of an SVG
        page.until("return window.saved?.startsWith('iVBOR')")
    page.until("return window.saved")
    return base64.b64decode(page.run("return window.saved"))


def test_exports(page: Page) -> None:
    drawing = sketches.tasks()
    page.open(drawing)
    assert json.loads(saved(page, "JSON")) == drawing
    picture = saved(page, "SVG").decode()
    tree = ElementTree.fromstring(picture)
    words = "".join(tree.itertext())
    assert all(node["label"] in words for node in drawing["nodes"])
    assert not {"class", "style"} & {key for element in tree.iter() for key in element.attrib}
    assert "var(" not in picture
    assert saved(page, "PNG")[:4] == b"\x89PNG"


def test_print_holds_the_whole_drawing(page: Page) -> None:
    page.open(sketches.tasks())
    settings = {"printBackground": True, "preferCSSPageSize": True}
    printed = page.browser.execute_cdp_cmd("Page.printToPDF", settings)["data"]
    assert len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(printed))) == 1
    assert page.run("return graph.getAttribute('viewBox')") is None


@pytest.fixture
def without_workers(browser: Any) -> Iterator[None]:
    script = {"source": "delete window.Worker;"}
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", script)
    yield
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


@pytest.mark.usefixtures("without_workers")
def test_page_opens_where_workers_are_refused(page: Page) -> None:
    page.open(sketches.repeated())
    assert page.run("return typeof Worker") == "undefined"
    assert page.ids() >= {"m1", "m2"}


def test_page_opens_inside_a_notebook(page: Page) -> None:
    """There it sits in a frame without an address, storage or downloads."""
    content = escape(to_html(sketches.tasks()))
    path = page.folder / "notebook.html"
    path.write_text(f'<iframe srcdoc="{content}" sandbox="allow-scripts" width=1000 height=600>')
    page.browser.get(path.as_uri())
    page.browser.switch_to.frame(page.one("iframe"))
    page.until("return document.documentElement.dataset.ready !== undefined")
    page.box("n1").click()
    assert page.ids(".box.selected") == {"n1"}
    page.browser.switch_to.default_content()


def test_in_a_part_of_a_notebook_that_is_shown_later(page: Page) -> None:
    content = escape(to_html(sketches.tasks()))
    path = page.folder / "notebook.html"
    looks = []
    for style in ("", "display: none"):
        path.write_text(
            f'<div style="{style}"><iframe srcdoc="{content}" sandbox="allow-scripts" width=1000 '
            "height=600></iframe></div>"
        )
        page.browser.get(path.as_uri())
        if style:
            time.sleep(0.5)
            page.run("document.querySelector('div').style.display = 'block'")
        page.browser.switch_to.frame(page.one("iframe"))
        page.until("return document.documentElement.dataset.ready !== undefined")
        page.until("return world.getAttribute('transform') !== null")
        looks.append((page.ids(), page.run("return world.getAttribute('transform')")))
        page.browser.switch_to.default_content()
    assert looks[0] == looks[1]


def test_three_thousand_nodes_open_at_once(page: Page) -> None:
    drawing = sketches.large()
    assert len(drawing["nodes"]) > 3000
    took = page.open(drawing)
    assert took < 6000, "3 s are asked for; the machine of the tests may be slow"


def test_long_lists_are_split(page: Page) -> None:
    sketch = sketches.Sketch("flat")
    sketch.chain([f"fc{i}" for i in range(400)])
    page.open(sketch.drawing, "#layer=fc399")
    assert page.ids(".box.selected") == {"n399"}
    assert len(page.ids()) < 100


def test_page_fits_a_small_screen(page: Page) -> None:
    resize(page.browser, 760, 560)
    page.open(sketches.tasks())
    resize(page.browser, 1280, 720)
    assert page.ids()
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
