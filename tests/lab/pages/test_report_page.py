"""The report in a real browser: curves, toggles, values under the pointer, keys, themes."""

from __future__ import annotations

from pathlib import Path

import pytest

from arturo_lab import cli

PLOT = "figure.chart svg.plot"  # the first one: querySelector takes it
TICKS = f"[...document.querySelector('{PLOT}').querySelectorAll('.ytick')]"


@pytest.fixture(scope="module")
def made(make_run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        make_run(root, "sgd", seed, final=0.80 + 0.01 * seed)
        make_run(root, "arturo", seed, final=0.90 + 0.01 * seed)
    make_run(root, "adam", 0, final=0.85)
    make_run(root, "adam", 1, status="diverged", done=5)
    make_run(root, "adamw", 0, status="unfinished", done=3)
    make_run(root, "<i>odd</i>", 0, final=0.7)
    make_run(root, "sgd", 0, task="digits-cnn", epochs=1)
    assert cli.main(["report", str(root), "--no-figures"]) == 0
    return root / "report.html"


@pytest.fixture
def page(browser, made):
    opened = browser.open(made)
    yield opened
    assert opened.errors == [] and opened.requests == [made.as_uri()]


def lines(page, kind: str = "line") -> dict[str, str]:
    """The paths of the first chart by the label of their series."""
    return page.js(
        f"""Object.fromEntries([...document.querySelector("{PLOT}").querySelectorAll("g.series")].map(group =>
        [DATA.sections[0].series[group.dataset.series].label,
         [...group.querySelectorAll("path.{kind}")].map(path => path.getAttribute("d")).join(" ")]))"""
    )


def choose(page, metric: str) -> None:
    page.js(
        f"""(() => {{ const list = document.querySelector("#task-0 select"); list.value = "{metric}";
        list.dispatchEvent(new Event("change")); }})()"""
    )


def hover(page, share: float) -> str:
    """Move to a share of the first chart's width; what the tip says."""
    page.centre(PLOT)
    box = page.js(f"document.querySelector('{PLOT}').getBoundingClientRect().toJSON()")
    page.mouse("mouseMoved", box["x"] + share * box["width"], box["y"] + box["height"] / 2)
    return page.js("(tip => tip.hidden ? null : tip.innerText)(document.querySelector('figure.chart .tip'))")


def test_curves_are_drawn(page) -> None:
    drawn = lines(page)
    assert list(drawn) == ["SGD", "Adam", "AdamW", "arTuRO", "<i>odd</i>"]
    assert drawn["SGD"].count("L") == 7  # eight epochs
    heights = [float(drawn[name].split(" ")[-1]) for name in ("arTuRO", "Adam", "SGD", "<i>odd</i>")]
    assert heights == sorted(heights)  # higher accuracy, smaller y
    assert len(lines(page, "band")["SGD"]) > 100 and lines(page, "band")["Adam"] == ""  # one finished run has no band
    assert page.js(f"{TICKS}.length") > 3 and page.js("document.querySelectorAll('i').length") == 0


def test_line_ends_where_the_axis_says(page) -> None:
    """The height of the last point, read off the ticks, is the mean of the final accuracies."""
    ticks = page.js(f"{TICKS}.map(t => [Number(t.textContent), Number(t.getAttribute('y')) - 4])")
    (v0, y0), (v1, y1) = ticks[0], ticks[-1]
    y = float(lines(page)["arTuRO"].split(" ")[-1])
    assert v0 + (y - y0) * (v1 - v0) / (y1 - y0) == pytest.approx(91.0, abs=0.05)


def test_lost_runs_are_marked(page) -> None:
    assert page.js(f"document.querySelectorAll('{PLOT} .end-diverged').length") == 1
    assert page.js(f"document.querySelectorAll('{PLOT} .end-unfinished').length") == 1
    said = page.js("document.querySelector('#task-0 .notice').innerText")
    assert "Adam, seed 1: diverged after 5 of 8 epochs" in said and "AdamW, seed 0: unfinished, 3 of 8 epochs" in said


def test_toggle_hides_a_line_and_keys_bring_it_back(page) -> None:
    page.click("button[data-series='0']")
    assert "SGD" not in lines(page) and page.js("document.querySelector('button[data-series=\"0\"]').ariaPressed") == "false"
    assert "SGD" not in hover(page, 0.9)
    page.js("document.querySelector('button[data-series=\"0\"]').focus()")
    page.key("Enter")
    assert "SGD" in lines(page) and page.js("document.querySelector('button[data-series=\"0\"]').ariaPressed") == "true"
    for index in range(5):
        page.click(f"button[data-series='{index}']")
    assert lines(page) == {} and hover(page, 0.5) is None  # nothing left to show, and no error


def test_hover_shows_values(page) -> None:
    said = hover(page, 0.985)
    assert said.splitlines()[0] == "epoch 8"
    for values in ("arTuRO\t91.00\t90.00 to 92.00", "SGD\t81.00\t80.00 to 82.00", "Adam\t85.00", "<i>odd</i>\t70.00"):
        assert values in said
    assert said.index("arTuRO") < said.index("Adam") < said.index("SGD")  # the best first
    assert hover(page, 0.1).splitlines()[0] == "epoch 1"
    page.mouse("mouseMoved", 1, 1)
    assert page.js("document.querySelector('figure.chart .tip').hidden")


def test_arrow_keys_walk_along_the_epochs(page) -> None:
    page.js(f"document.querySelector('{PLOT}').focus()")
    live = "document.querySelector('figure.chart [aria-live]').textContent"
    page.key("Home")
    page.key("ArrowRight")
    assert page.js(live).startswith("epoch 2: arTuRO ")
    page.key("End")
    assert page.js(live).startswith("epoch 8: arTuRO 91.00, Adam 85.00")
    page.key("Escape")
    assert page.js(live) == "" and page.js("document.querySelector('figure.chart .tip').hidden")


def test_over_time(page) -> None:
    page.click("[data-x='seconds']")
    assert page.js("document.querySelector('[data-x=epochs]').ariaPressed") == "false"
    assert "seconds of training" in page.js(f"document.querySelector('{PLOT}').textContent")
    said = hover(page, 0.985)
    assert "arTuRO (epoch 8)\t91.00\t90.00 to 92.00" in said and said.splitlines()[0].endswith(" s")
    early = hover(page, 0.3)
    assert "arTuRO (epoch 2)" in early


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("train_loss", "0.04359\t0.03359 to 0.05359"),
        ("test_loss", "0.1153\t0.1153 to 0.1153"),
        ("eta", "4\t4 to 4"),
        ("kl_over_bound", "0.99\t0.99 to 0.99"),
    ],
)
def test_metrics(page, metric: str, value: str) -> None:
    choose(page, metric)
    assert f"arTuRO\t{value}" in hover(page, 0.985)
    assert ("SGD" in hover(page, 0.985)) == metric.endswith("loss")


def test_log_scale_shows_the_error(page) -> None:
    before = lines(page)["arTuRO"]
    page.click("[data-scale='log']")
    assert lines(page)["arTuRO"] != before
    assert "test error [%], log scale" in page.js(f"document.querySelector('{PLOT}').textContent")
    assert "arTuRO\t9.00\t8.00 to 10.00" in hover(page, 0.985)
    page.click("[data-scale='linear']")
    assert lines(page)["arTuRO"] == before


def test_log_scale_of_a_loss(page) -> None:
    choose(page, "train_loss")
    page.click("[data-scale='log']")
    assert "train loss [nats], log scale" in page.js(f"document.querySelector('{PLOT}').textContent")
    assert all("NaN" not in d for kind in ("line", "band", "lost") for d in lines(page, kind).values())


def test_single_runs_on_demand(page) -> None:
    assert page.js(f"document.querySelectorAll('{PLOT} path.single').length") == 0
    page.click("[data-section='0'] [data-control='singles']")
    assert page.js(f"document.querySelectorAll('{PLOT} path.single').length") == 3 + 1 + 3 + 1


def test_close_up_can_be_left(page) -> None:
    script = f"{TICKS}.map(t => Number(t.textContent))"
    near = page.js(script)
    page.click("[data-section='0'] [data-control='focus']")
    assert min(page.js(script)) < min(near)


def test_one_epoch_is_a_point(page) -> None:
    assert page.js("document.querySelectorAll('#task-1 svg.plot circle.point').length") == 1


def test_a_tap_shows_values_and_another_hides_them(browser, made) -> None:
    """On a phone: the finger lifts, the values stay, until something else is tapped."""
    page = browser.open(made, width=400)
    page.send("Emulation.setTouchEmulationEnabled", enabled=True)
    x, y = page.centre(PLOT)

    def tap(x: float, y: float) -> None:
        page.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        page.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    tap(x, y)
    page.wait("!document.querySelector('figure.chart .tip').hidden")
    assert "arTuRO" in page.js("document.querySelector('figure.chart .tip').innerText")
    box = page.js("document.querySelector('figure.chart .tip').getBoundingClientRect().toJSON()")
    assert box["x"] >= 0 and box["x"] + box["width"] <= 400
    x, y = page.centre("h1")
    tap(x, y)
    page.wait("document.querySelector('figure.chart .tip').hidden")


def test_headings_sort(page) -> None:
    column = "[...document.querySelectorAll('#task-0 table.comparison tbody tr')].map(row => row.cells[0].innerText)"
    before = page.js(column)
    page.click("#task-0 table.comparison th:nth-child(2) button")
    rising = page.js(column)
    assert (
        rising[:4] == ["<i>odd</i>", "SGD", "Adam", "arTuRO"] and rising[-1] == "AdamW" and rising != before
    )  # no number: last
    assert page.js("document.querySelector('#task-0 th[aria-sort]').innerText").startswith("test accuracy")
    page.click("#task-0 table.comparison th:nth-child(2) button")
    assert page.js(column)[:4] == ["arTuRO", "Adam", "SGD", "<i>odd</i>"] and page.js(column)[-1] == "AdamW"
    page.click("#task-0 table.comparison th:nth-child(1) button")
    assert page.js(column) == sorted(before, key=str.lower)


def test_exports_are_whole(page) -> None:
    link = "document.querySelector('#task-0 a[download=\"{}\"]').href"
    csv = page.js(f"decodeURIComponent({link.format('comparison.csv')}.split(',').slice(1).join(','))")
    assert csv.splitlines()[0].startswith("label,test_accuracy,") and len(csv.splitlines()) == 6
    tex = page.js(f"decodeURIComponent({link.format('comparison.tex')}.split(',').slice(1).join(','))")
    assert tex.startswith("\\begin{tabular}{lr") and "91.00 $\\pm$ 2.48" in tex


def test_every_seed_is_there(page) -> None:
    cells = page.js(
        "[...document.querySelectorAll('#task-0 table.seeds tbody tr')].map(row => row.innerText.replace(/\\s+/g, ' ').trim())"
    )
    text = page.js("document.querySelector('#task-0 table.seeds').textContent.replace(/\\s+/g, ' ')")
    assert len(cells) == 5 and "90.00 91.00 92.00" in text and "diverged" in text and "unfinished" in text


def test_lines_differ_in_grey(page) -> None:
    dashes = page.js("DATA.sections[0].series.map(series => series.dashes + series.marker)")
    assert len(set(dashes)) == len(dashes) == 5


def test_time_bars_share_a_scale(page) -> None:
    total = "[...bar.children].reduce((sum, part) => sum + parseFloat(part.style.width), 0)"
    widths = page.js(f"[...document.querySelectorAll('#task-0 .stack')].map(bar => {total})")
    assert max(widths) == pytest.approx(100, abs=0.1) and len(widths) == 5


def test_fold_outs_open_by_key(page) -> None:
    page.js("document.querySelector('#task-0 details summary').focus()")
    page.key("Enter")
    assert page.js("document.querySelector('#task-0 details').open")
    assert "81.00" in page.js("document.querySelector('#task-0 details').innerText")


def test_themes(browser, made) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    ink = f"getComputedStyle(document.querySelector('{PLOT} g.series')).color"
    page = browser.open(made, dark=True)
    assert page.js(ground) == "rgb(20, 22, 26)" and page.js(ink) == "rgb(75, 163, 227)"
    page.click("#theme")
    assert page.js(ground) == "rgb(255, 255, 255)" and page.js(ink) == "rgb(0, 114, 178)"
    page.click("#theme")
    assert page.js(ground) == "rgb(20, 22, 26)"
    light = browser.open(made)
    assert light.js(ground) == "rgb(255, 255, 255)"
    light.media(dark=True)  # the system changes its mind
    assert light.js(ground) == "rgb(20, 22, 26)"
    light.wait("document.getElementById('theme').textContent === 'Light'")


@pytest.mark.parametrize("width", [340, 700, 1600])
def test_fits_the_window(browser, made, width: int) -> None:
    page = browser.open(made, width=width)
    assert page.js("document.documentElement.scrollWidth") <= width
    assert page.js(f"document.querySelector('{PLOT}').getBoundingClientRect().width") > 0.8 * min(width, 1250) - 40


def test_redraws_when_the_window_changes(browser, made) -> None:
    page = browser.open(made, width=1200)
    before = lines(page)["SGD"]
    page.send("Emulation.setDeviceMetricsOverride", width=500, height=900, deviceScaleFactor=1, mobile=False)
    page.wait(f"document.querySelector('{PLOT}').getAttribute('viewBox').split(' ')[2] < 500")
    assert lines(page)["SGD"] != before


def test_paper_gets_a_drawing_of_its_own(page) -> None:
    size = f"document.querySelector('{PLOT}').getAttribute('viewBox')"
    before = page.js(size)
    page.js("dispatchEvent(new Event('beforeprint'))")
    assert page.js(size) == "0 0 700 300" and "SGD" in lines(page)
    page.js("dispatchEvent(new Event('afterprint'))")
    assert page.js(size) == before


def test_policy_forbids_the_network(browser, made) -> None:
    page = browser.open(made)
    page.js("fetch('http://127.0.0.1:9/').catch(() => 0)")
    assert any("Content Security Policy" in error for error in page.errors)


def test_prints(browser, made) -> None:
    page = browser.open(made, dark=True)
    assert len(page.send("Page.printToPDF", printBackground=False)["data"]) > 20_000
    page.send("Emulation.setEmulatedMedia", media="print")
    assert page.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    shown = "getComputedStyle(document.querySelector('.controls {}')).display !== 'none'"
    assert not page.js(shown.format("label"))
    assert page.js(shown.format(".keys"))  # the legend stays
