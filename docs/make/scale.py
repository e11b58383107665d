"""Fill the tables of docs/scale.md from results/benchmarks; whatever was not measured is marked as extrapolated."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "scale.md"
IMAGENET_21K = (14_197_122, 21_841)  # images and classes of the release of 2011
BILLION = 10**9
_LINE = re.compile(r"^(\w[\w, ]*?) {2,}([\d,]+) +(\d+) +(\d+) +([\d,]+) +([\d.]+) +([\d.]+) +([\d,]+) +(\S+)")


@dataclass(frozen=True)
class Line:
    """A line of results/benchmarks/scale.txt."""

    step: str
    rows: int
    parts: int
    classes: int
    disk: float
    seconds: float
    processor: float
    peak: float
    difference: str


def measured() -> list[Line]:
    text = (ROOT / "results" / "benchmarks" / "scale.txt").read_text(encoding="utf-8")
    found = []
    for match in filter(None, map(_LINE.match, text.splitlines())):
        step, *numbers, difference = match.groups()
        if step.startswith(("fit_parts", "route_parts")):  # measured once, and no longer part of the package
            continue
        plain = [each.replace(",", "") for each in numbers]
        found.append(Line(step, *map(int, plain[:3]), *map(float, plain[3:]), difference))
    return found


def per_row(lines: list[Line], value: str) -> float:
    """Slope between the two largest sizes: what a start-up costs does not count."""
    few, many = sorted(lines, key=lambda line: line.rows)[-2:]
    return max(0.0, (getattr(many, value) - getattr(few, value)) / (many.rows - few.rows))


def table(heads: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows])


def judging() -> str:
    heads = ["step", "rows", "classes", "on disk, MB", "seconds", "of processor time", "peak memory, MB"]
    rows = []
    for line in measured():
        processor = "-" if line.step.endswith("Ray") else f"{line.processor:.1f}"
        sizes = [f"{line.rows:,}", f"{line.classes:,}", f"{line.disk:,.0f}"]
        rows.append([line.step, *sizes, f"{line.seconds:.1f}", processor, f"{line.peak:,.0f}"])
    return table(heads, rows)


def parts() -> str:
    largest = max(line.rows for line in measured() if line.step == "evaluate_parts on Ray")
    found = {line.step: line for line in measured() if line.rows == largest}
    one, here, ray = (found[step] for step in ("evaluate, one process", "evaluate_parts", "evaluate_parts on Ray"))
    return (
        f"{one.rows:,} rows in {one.parts} parts: {one.seconds:.0f} s in one process, {here.seconds:.0f} s part by "
        f"part in one process, {ray.seconds:.0f} s on Ray with two workers, its start left out. The largest relative "
        f"difference of any number: {ray.difference}."
    )


def billion() -> str:
    rows = []
    for step in ("evaluate, one process", "evaluate_parts", "watch"):
        lines = [line for line in measured() if line.step == step and line.classes == 4]
        minutes, memory = per_row(lines, "processor") * BILLION / 60, per_row(lines, "peak") * BILLION / 1000
        shown = f"{memory:.1f} GB"
        rows.append([step, f"{max(line.rows for line in lines):,}", f"{minutes:.0f} min", shown])
    return table(["step", "measured up to", "processor time", "memory beside that of Python and torch"], rows)


def pruning() -> tuple[float, float, float]:
    """Microseconds, bytes of the table and bytes beside it, each per sample, of the largest measurement."""
    text = (ROOT / "results" / "benchmarks" / "pruning-cpu.txt").read_text(encoding="utf-8")
    found = re.search(r"^Unbiased +10,000,000 +[\d.]+ +([\d.]+) +(\d+) +(\d+)", text, re.MULTILINE)
    micro, extra, table_size = (float(each) for each in found.groups())
    return micro, table_size / 10, extra / 10


def imagenet() -> str:
    samples, classes = IMAGENET_21K
    micro, scores, extra = pruning()
    images, head, held = samples * 3 * 224**2 / 1e12, 2049 * classes * 4 / 1e6, samples // 100 * classes * 4 / 1e9
    resting = f"{samples * extra / 1e6:,.0f} MB, {samples * micro / 1e6:.1f} s"
    slope, sums = "extrapolated from 10 million samples", "arithmetic"
    rows = [
        ["scores of the pruner", f"samples: {scores:.0f} bytes each", f"{samples * scores / 1e6:,.0f} MB", slope],
        ["choosing what rests, per epoch", f"samples: {extra:.0f} bytes, {micro:.2f} µs each", resting, slope],
        ["images on the device", "samples x 3 x side² bytes", f"{images:.1f} TB at 224 pixels: they stream", sums],
        ["logits of 1 % held out", "rows x classes x 4 bytes", f"{held:.1f} GB on disk, read in blocks of 4 MB", sums],
        ["class-wise bins", "classes x bins x 8 bytes", f"{classes * 15 * 8 / 1e6:.1f} MB", sums],
        ["last layer of ResNet-50", "2,049 x classes x 4 bytes", f"{head:.0f} MB; momentum and gradient as much", sums],
    ]
    return table(["part", "grows with", "here", "how known"], rows)


def days() -> str:
    heads = ["images per second and GPU (assumed)", "1 GPU", "8 GPUs", "64 GPUs", "64 GPUs at a budget of 0.6"]
    rows = []
    for rate in (1000, 2500, 5000):
        seconds = [90 * IMAGENET_21K[0] * share / (rate * gpus) for gpus, share in ((1, 1), (8, 1), (64, 1), (64, 0.6))]
        rows.append([f"{rate:,}", *(f"{each / 3600:,.1f} h" for each in seconds)])
    return table(heads, rows)


def filled(text: str) -> str:
    """The page with every table made anew."""
    for make in (judging, parts, billion, imagenet, days):
        mark = f"<!-- {make.__name__} -->"
        before, _, rest = text.partition(mark)
        _, _, after = rest.partition("<!-- end -->")
        text = f"{before}{mark}\n{make()}\n<!-- end -->{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE)
