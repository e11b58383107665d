"""Every file and command of docs/inputs.md: the file is written, the command is run, and what it prints is compared."""

import re
import shlex
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "inputs.md"
FORM = re.compile(
    r"`([\w.-]+)`:\n\n```(?:csv|json)\n(.*?)```\n\n```console\n\$ calibrant ([^\n]*)\n(.*?)```", re.DOTALL
)
FORMS = FORM.findall(PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "text", "command", "printed"), FORMS, ids=[form[0] for form in FORMS])
def test_a_file_gives_what_the_page_says(calibrant, tmp_path, monkeypatch, name, text, command, printed):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text, encoding="utf-8")
    code, out, err = calibrant(*shlex.split(command))
    lines = printed.splitlines(keepends=True)
    messages = [line for line in lines if line.startswith("calibrant: ")]
    assert err == "".join(messages)
    if printed.startswith("calibrant: ") and "warning: " not in printed:
        assert (code, out) == (2, "")
    else:
        assert code == 0
        for line in lines[len(messages) :]:
            assert line in out


def test_the_page_has_all_forms():
    assert len(FORMS) >= 20
