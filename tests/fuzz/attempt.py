"""One attempt: a copy of the files that are needed, one of them damaged, in a folder of its own."""

import hashlib
import shutil
from pathlib import Path
from random import Random

from tests.fuzz.mutations import damage, odd_name
from tests.fuzz.targets import Target


def set_up(target: Target, corpus: Path, folder: Path, random: Random) -> tuple[Path, str]:
    """Copy and damage; returns the folder of the copies and what was done to which file."""
    here = folder / "in"
    for pattern in (*target.needed, *target.damaged):
        for path in corpus.glob(pattern):
            copy = here / path.relative_to(corpus)
            if path.is_dir():
                shutil.copytree(path, copy, dirs_exist_ok=True)
            else:
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
    if target.renames and random.random() < 0.2:
        return here, odd_name(here / target.needed[0], random)
    files = sorted(path for pattern in target.damaged for path in here.glob(pattern) if path.is_file())
    chosen = random.choice(files)
    done = [damage(chosen, random) for _ in range(random.choice([1, 1, 1, 2, 3]))]
    return here, f"{chosen.relative_to(here)}: {', '.join(done)}"


def listing(folder: Path) -> dict[str, str]:
    """Every file below a folder and its digest."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def left_behind(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Files that are new or changed."""
    return sorted(name for name, digest in after.items() if before.get(name) != digest)
