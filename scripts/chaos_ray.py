"""For chaos.py: a study on Ray that loses its command, or any other process of the cluster on this machine.

The rule: whatever is lost, nothing is left behind; where the command lives it ends with 0, or with one line; and the
same command then goes on to the files of an undisturbed study. Where Ray's own head (GCS) or the node's raylet is lost,
Ray ends the command from C++, with exit code 1 and a message of its own, which nothing in Python can catch.
"""

import random
import shutil
import time
from pathlib import Path

from chaos_jobs import compare, study_content
from chaos_ranks import Ranks, kill, whole

# A study that lost a process may begin a run again. Ray itself takes some seconds to notice a lost command.
LONGEST_STUDY, LONGEST_WAIT = 300.0, 60.0


def on_ray(out: Path) -> list[str]:
    words = compare(out)
    jobs = words.index("--jobs")
    return [*words[:jobs], *words[jobs + 2 :], "--executor", "ray"]


def lose_on_ray(times: int, how: str, place: Path, draw: random.Random) -> tuple[int, list[str]]:
    """Kill the command ("command") or another process of it ("process") again and again, and finish each study.

    How many of them ended as an undisturbed one, and what was wrong.
    """
    out, log = place / "study", place / "ray.txt"
    code, seconds, said = whole(on_ray(out), log)
    if code:
        raise SystemExit(f"the undisturbed study on Ray ended with {code}: {said}")
    expected, identical, wrong = study_content(out), 0, []
    for _ in range(times):
        shutil.rmtree(out)
        delay = draw.uniform(0.0, seconds)
        found = _lose_one(Ranks(on_ray(out), log), how, delay, draw)
        code, _, said = whole(on_ray(out), log)
        if code:
            found.append(f"it cannot go on: {said.strip()[-300:]}")
        elif study_content(out) != expected:
            found.append("different bytes")
        identical += not found
        wrong += [f"{how} lost after {delay:.1f} of {seconds:.1f} s: {each}" for each in found]
    return identical, wrong


def _lose_one(ranks: Ranks, how: str, delay: float, draw: random.Random) -> list[str]:
    time.sleep(delay)
    first, others = ranks.first.pid, sorted(set(ranks.alive()) - {ranks.first.pid})
    victim = draw.choice(others) if how == "process" and others else first  # Ray may not have begun
    kill(victim)
    if not ranks.end(LONGEST_WAIT if victim == first else LONGEST_STUDY):
        return ["a process still lives"]
    if victim == first:
        return []
    code, (said,) = ranks.first.returncode, ranks.said()
    lines = [line for line in said.splitlines() if line.startswith("calibrant: ") and "warning: " not in line]
    by_ray = code == 1 and any(word in said for word in ("GCS may have been killed", "to Raylet"))
    fine = code == 0 or (code in (1, 2) and lines) or by_ray
    return [] if fine and "Traceback" not in said else [f"exit code {code}: {said.strip()[-300:]}"]
