"""The files of a run: its log of numbers, its report, and what TensorBoard makes of the log.

The files come from the C++ sinks, played by the C++ test program with the numbers of
``src/shardwise/monitor/recorded_run_test.h``, which are computed here once more.
"""

import json
import math
import os
import re
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TITLE = 'llama, 1.2 M parameters, ZeRO 3, 2 ranks <test> & "more"'
CONFIG = {"model": {"config": {"hidden_size": 128, "layers": [1, 2.5e-3]}}, "s": "</pre>&"}
PROMPT = "Once upon a time "
TEXT = 'there was <b>a</b> little "dog" & a cat.\nThey said: na\u00efve \ufffd bytes \x1b[31m.'
ERROR = "CommunicationError: rank 1 <died>"
VOID = {"meta", "br", "img", "link"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    programs = sorted(ROOT.glob("build/*/torch_free_tests"), key=lambda path: path.stat().st_mtime)
    if not programs:
        pytest.skip("the C++ tests are not built")
    folder = tmp_path_factory.mktemp("run")
    subprocess.run(
        [str(programs[-1]), "--gtest_filter=MonitorSample.Write"],
        env=dict(os.environ, SW_MONITOR_SAMPLE=str(folder)),
        check=True,
        capture_output=True,
        timeout=60,
    )
    return folder


def recorded_loss(step, steps):
    at = step / steps
    noise = math.sin(step * 12.9898) * 43758.5453
    spread = noise - math.floor(noise) - 0.5
    return 1.9 + 8.9 * math.exp(-18 * at) + 0.6 * (1 - at) + 0.25 * spread


def read_log(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# The log of numbers ---------------------------------------------------------------------------


def test_log_has_the_whole_run(files):
    records = read_log(files / "500.jsonl")
    assert records[0] | {"unix_time": 0} == {
        "kind": "run",
        "unix_time": 0,
        "title": TITLE,
        "steps": 500,
        "config": CONFIG,
    }
    assert abs(records[0]["unix_time"] - time.time()) < 3600
    steps = [record for record in records if record["kind"] == "step"]
    assert [record["step"] for record in steps] == list(range(1, 501))
    for record in steps:
        # Another library's sine and exponential may differ in the last digit.
        assert record["loss"] == pytest.approx(recorded_loss(record["step"], 500), rel=1e-9)
        assert record["skipped"] == (record["step"] in (90, 227, 364))
        assert (record["grad_norm"] == "Infinity") == record["skipped"]
        assert record["tokens"] == record["step"] * 8192
    evaluations = [record["step"] for record in records if record["kind"] == "evaluation"]
    assert evaluations == list(range(51, 500, 51))
    sample = {"kind": "sample", "step": 500, "prompt": PROMPT, "text": TEXT}
    assert [record for record in records if record["kind"] == "sample"][1] == sample
    assert records[-1] == {"kind": "end", "error": ""}
    assert read_log(files / "10.jsonl")[-1] == {"kind": "end", "error": ERROR}


def test_numbers_have_as_many_digits_as_python_needs(files):
    def significant(text):
        return re.sub(r"e.*", "", text.lstrip("-")).replace(".", "").strip("0")

    found = re.findall(r'"(?:loss|lr|seconds)": ([^,}]+)', (files / "500.jsonl").read_text())
    assert len(found) > 1500
    for text in found:
        assert significant(text) == significant(repr(float(text))), text


# The report -----------------------------------------------------------------------------------


class Page(HTMLParser):
    """Checks that elements are closed in order; keeps text by element and class."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open = []
        self.tags = []
        self.texts = {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append((tag, dict(attributes).get("class")))

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open:
            texts = self.texts.setdefault(self.open[-1], [])
            texts.append(data)

    def text(self, tag, kind=None):
        return "".join(self.texts[(tag, kind)])

    def with_class(self, kind):
        return [tag for tag, attributes in self.tags if attributes.get("class") == kind]


def pictures(text):
    """The charts as XML elements, without the name space."""
    found = re.findall(r"</figcaption>\s*(<svg .*?</svg>)\s*</figure>", text, re.S)
    assert len(found) == 4
    return [
        ElementTree.fromstring(svg.replace('xmlns="http://www.w3.org/2000/svg"', ""))
        for svg in found
    ]


def numbers(text):
    return [float(number) for number in re.findall(r"-?[\d.]+", text)]


@pytest.mark.parametrize("name", ["10", "500", "20000"])
def test_report_is_well_formed_and_needs_nothing_else(files, name):
    text = (files / f"{name}.html").read_text()
    page = Page(text)
    assert page.text("h1") == TITLE
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        names = {attribute for attribute in attributes if attribute != "xmlns"}
        assert not names & {"src", "href", "xlink:href", "style"}
        assert not any(attribute.startswith("on") for attribute in names)
    assert "url(" not in text and "@import" not in text
    assert text.count("http") == text.count("http://www.w3.org/2000/svg") + text.count("http-equiv")
    assert len(text) < 1_000_000
    for picture in pictures(text):
        for element in picture.iter():
            for key in ("d", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy"):
                values = element.get(key, "")
                assert "nan" not in values and "inf" not in values


def test_report_tells_the_state(files):
    finished = Page((files / "500.html").read_text())
    assert finished.with_class("state finished") == ["p"]
    assert ("meta", {"http-equiv": "refresh", "content": "60"}) not in finished.tags
    failed = Page((files / "10.html").read_text())
    assert failed.with_class("state failed") == ["p"]
    assert failed.text("pre", "error") == ERROR
    running = Page((files / "20000.html").read_text())
    assert running.with_class("state running") == ["p"]
    assert ("meta", {"http-equiv": "refresh", "content": "5"}) in running.tags


def test_report_shows_text_as_it_is(files):
    page = Page((files / "500.html").read_text())
    shown = TEXT.replace("\x1b", "\ufffd")
    assert page.text("span", "prompt") == PROMPT * 2
    assert page.text("pre") == shown * 2 + json.dumps(CONFIG, indent=2)


def test_charts_show_the_numbers(files):
    loss, rate, norm, speed = pictures((files / "500.html").read_text())
    for picture in (loss, rate, norm, speed):
        ticks = [element for element in picture.iter("text") if "tick" in element.get("class")]
        across = [element for element in ticks if element.get("class") == "tick"]
        assert [element.text for element in across] == ["100", "200", "300", "400", "500"]
    # Ticks say where values are; the held-out points must lie there.
    down = {
        float(text.text): float(text.get("y")) - 4
        for text in loss.iter("text")
        if text.get("class") == "tick y"
    }
    (low, low_y), *_, (high, high_y) = sorted(down.items())
    circles = list(loss.iter("circle"))
    records = read_log(files / "500.jsonl")
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    assert len(circles) == len(evaluations) == 9
    for circle, record in zip(circles, evaluations, strict=True):
        wanted = low_y + (record["loss"] - low) / (high - low) * (high_y - low_y)
        assert float(circle.get("cy")) == pytest.approx(wanted, abs=0.2)
    # 500 points, and a triangle for each skipped step.
    faint = [path for path in loss.iter("path") if path.get("class") == "faint"]
    assert len(numbers(faint[0].get("d"))) == 1000
    marks = [path for path in loss.iter("path") if path.get("class") == "mark"]
    assert marks[0].get("d").count("M") == 3
    # The norm of a skipped step is infinite: its curve has three gaps.
    faint = [path for path in norm.iter("path") if path.get("class") == "faint"]
    assert faint[0].get("d").count("M") == 4


# TensorBoard ----------------------------------------------------------------------------------


def step_line(step, loss=2.5):
    loss = json.dumps(loss)
    return (
        f'{{"kind": "step", "step": {step}, "loss": {loss}, "lr": 0.001, "grad_norm": "NaN", '
        f'"loss_scale": 1, "skipped": false, "tokens_per_second": 10.5, "tokens": {step}, '
        f'"samples": {step}, "seconds": {step}, "peak_memory": {step}}}\n'
    )


RUN_LINE = '{"kind": "run", "unix_time": 1000, "title": "t", "steps": 3, "config": {"a": 1}}\n'
END_LINE = '{"kind": "end", "error": ""}\n'


def read_events(folder):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    ).EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


@pytest.fixture
def convert():
    pytest.importorskip("tensorboard")
    from shardwise.tensorboard import main

    return main


def test_tensorboard_reads_what_the_log_says(files, convert, tmp_path):
    assert convert([str(files / "500.jsonl"), "--logdir", str(tmp_path)]) == 0
    events = read_events(tmp_path)
    records = read_log(files / "500.jsonl")
    began = records[0]["unix_time"]
    steps = [record for record in records if record["kind"] == "step"]
    for key in ("loss", "lr", "grad_norm", "loss_scale", "tokens_per_second", "peak_memory"):
        found = events.Scalars(f"train/{key}")
        assert [event.step for event in found] == [record["step"] for record in steps]
        for event, record in zip(found, steps, strict=True):
            assert event.value == pytest.approx(float(record[key]), rel=1e-6)
            assert event.wall_time == pytest.approx(began + record["seconds"], abs=1e-3)
    wanted = {r["step"]: r["loss"] for r in records if r["kind"] == "evaluation"}
    found = {event.step: event.value for event in events.Scalars("eval/loss")}
    assert found == pytest.approx(wanted, rel=1e-6)
    samples = events.Tensors("sample/text_summary")
    assert [event.step for event in samples] == [250, 500]
    shown = samples[1].tensor_proto.string_val[0].decode()
    assert shown == "\n".join("    " + line for line in (PROMPT + TEXT).split("\n"))


def test_a_second_conversion_replaces_the_first(convert, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(RUN_LINE + step_line(1, 3.5) + step_line(2, 3.0))
    assert convert([str(log)]) == 0
    time.sleep(1.1)  # event files are named by the second
    log.write_text(RUN_LINE + step_line(1, 2.0))
    assert convert([str(log)]) == 0
    found = read_events(tmp_path / "tensorboard").Scalars("train/loss")
    assert [(event.step, event.value) for event in found] == [(1, 2.0)]


def test_following_waits_for_whole_lines_and_for_the_end(convert, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(RUN_LINE + step_line(1))
    codes = []
    thread = threading.Thread(target=lambda: codes.append(convert([str(log), "--follow"])))
    thread.start()
    line = step_line(2, "Infinity")
    with log.open("a") as file:
        for piece in (line[:20], line[20:], END_LINE[:5], END_LINE[5:]):
            assert thread.is_alive()
            file.write(piece)
            file.flush()
            time.sleep(0.7)
    thread.join(timeout=20)
    assert codes == [0]
    found = read_events(tmp_path / "tensorboard").Scalars("train/loss")
    assert [(event.step, event.value) for event in found] == [(1, 2.5), (2, math.inf)]


def test_following_goes_on_with_a_new_run(convert, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(RUN_LINE + step_line(1) + step_line(2) + '{"kind": "ste')
    codes = []
    thread = threading.Thread(target=lambda: codes.append(convert([str(log), "--follow"])))
    thread.start()
    time.sleep(1.5)
    assert thread.is_alive()
    log.rename(tmp_path / "log.1.jsonl")
    log.write_text(RUN_LINE + step_line(1, 9.0) + END_LINE)
    thread.join(timeout=20)
    assert codes == [0]
    found = read_events(tmp_path / "tensorboard").Scalars("train/loss")
    assert [(event.step, event.value) for event in found] == [(1, 9.0)]


def test_a_cut_last_line_is_left_out(convert, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(RUN_LINE + step_line(1) + step_line(2)[:-1])
    assert convert([str(log)]) == 0
    found = read_events(tmp_path / "tensorboard").Scalars("train/loss")
    assert [event.step for event in found] == [1]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("hello\n", "line 1: is no JSON"),
        (RUN_LINE + "[1]\n", 'line 2: is no object with "kind"'),
        (RUN_LINE + '{"kind": "step", "step": 1}\n', 'line 2: "step" has a missing or wrong field'),
        (RUN_LINE.replace("1000", '"x"'), 'line 1: "run" has a missing or wrong field'),
        (None, "there is no such file"),
    ],
)
def test_wrong_files_are_named(convert, tmp_path, capsys, content, complaint):
    log = tmp_path / "log.jsonl"
    if content is not None:
        log.write_text(content)
    assert convert([str(log)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {log}: ") and complaint in error


def test_missing_tensorboard_is_named_with_the_command(monkeypatch, tmp_path, capsys):
    from shardwise.tensorboard import main

    log = tmp_path / "log.jsonl"
    log.write_text(RUN_LINE)
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert main([str(log)]) == 1
    assert f"{sys.executable} -m pip install tensorboard" in capsys.readouterr().err
    assert not (tmp_path / "tensorboard").exists()
