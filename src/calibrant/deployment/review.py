"""The review page: cases that went to a person, and a random share of the automated ones, one after the other.

Labels of reviewed cases say nothing about the automated ones, which the promise is about. So a share of these is drawn
at random and shown, too, and the page does not say which is which: neither the decision nor the predicted class nor its
probability is sent to it, and both kinds of cases come with choices of the same kind.
"""

import hashlib
import mimetypes
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibrant.checks import fraction
from calibrant.deployment.decider import Decider
from calibrant.deployment.decision import UnknownId
from calibrant.deployment.log import DecisionLog
from calibrant.errors import InvalidInput

PAGE_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'"
# A case that was given to one reviewer is not given to another for this time.
_LEASE_S = 300
_BLOCK = 500
# Up to this many classes are all shown; of more, those of the shortlist.
_ALL_CLASSES = 9
_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp")


class Review:
    """Which case a reviewer sees next.

    Args:
        decider: With a log.
        audit: Share of the automated cases that are drawn.
        key: Any text that is the same in all processes of a service; which cases are drawn depends on it.
        pictures: Folder with the pictures that the extra `picture` of a case names; None for none.
    """

    def __init__(self, decider: Decider, audit: float, key: str, pictures: str | Path | None = None) -> None:
        if decider.log is None:
            raise InvalidInput("the review page needs a log. Leave out --no-log.")
        self.log: DecisionLog = decider.log
        self.decider = decider
        self.audit = fraction("audit", audit, ends=True)
        self.pictures: Path | None = None
        if pictures is not None:
            self.pictures = Path(pictures)
            if not self.pictures.is_dir():
                raise InvalidInput(f"pictures {pictures} must be a folder.")
        self._key = key
        self._leases: dict[str, float] = {}
        self._lock = threading.Lock()
        # Numbers of classes in the shortlists that were seen last, from which those of drawn cases are chosen.
        self._sizes = [2]

    def next_case(self, after: int) -> dict[str, Any] | None:
        """The first case after a number of the log that needs a label; None if there is none.

        Args:
            after: Number of the last case that the reviewer saw or skipped.
        """
        now = time.monotonic()
        for block in self.log.decisions(since=after, labelled=False, block=_BLOCK):
            for row in range(len(block)):
                name = str(block.ids[row])
                automated = bool(block.automate[row])
                if (automated and not self.drawn(name)) or not self._lease(name, now):
                    continue
                facts = {key: values[row] for key, values in block.extras.items() if values[row] is not None}
                choices = self._choices(name, int(block.predicted[row]), block.shortlists[row], automated=automated)
                return {
                    "id": name,
                    "sequence": int(block.sequence[row]),
                    "extras": facts,
                    "choices": [self.decider.class_names[k] for k in choices],
                    "classes": self.decider.class_names,
                    "picture": self.pictures is not None and "picture" in facts,
                }
        return None

    def drawn(self, name: str) -> bool:
        """Whether an automated case is among those that are drawn."""
        digest = hashlib.sha256(f"{self._key}:{name}".encode()).digest()
        return int.from_bytes(digest[:8], "big") < self.audit * 2**64

    def _lease(self, name: str, now: float) -> bool:
        with self._lock:
            for known in [known for known, until in self._leases.items() if until < now]:
                del self._leases[known]
            if name in self._leases:
                return False
            self._leases[name] = now + _LEASE_S
        return True

    def _choices(self, name: str, predicted: int, listed: Sequence[int], *, automated: bool) -> list[int]:
        """Classes for buttons in the order of their numbers, which says nothing about the case."""
        classes = range(len(self.decider.class_names))
        if len(classes) <= _ALL_CLASSES or self.decider.policy.shortlist is None:
            return list(classes)[:_ALL_CLASSES]
        if not automated:
            self._sizes = [*self._sizes[-100:], max(len(listed), 1)]
            return sorted(listed)[:_ALL_CLASSES]
        # A list as a reviewed case would have: the predicted class, and others in its length.
        draw = random.Random(f"{self._key}:{name}")  # noqa: S311 (the key is the secret)
        others = [k for k in classes if k != predicted]
        return sorted([predicted, *draw.sample(others, draw.choice(self._sizes) - 1)])[:_ALL_CLASSES]

    def picture(self, name: str) -> tuple[bytes, str]:
        """The picture of a case and its type; only files of the folder are read."""
        logged = self.log.find(name)
        if self.pictures is not None and logged is not None:
            folder = self.pictures.resolve()
            path = (folder / str(logged.decision.extras.get("picture", ""))).resolve()
            if path.is_relative_to(folder) and path.suffix.lower() in _PICTURES and path.is_file():
                return path.read_bytes(), mimetypes.guess_type(path.name)[0] or "image/png"
        raise UnknownId("there is no picture of this case.")


ICON = b"GIF89a\1\0\1\0\x80\0\0\0\0\0\0\0\0!\xf9\4\1\0\0\0\0,\0\0\0\0\1\0\1\0\0\2\2D\1\0;"
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Review</title><link rel="stylesheet" href="/review.css"><link rel="icon" href="/review.ico">
<body>
<header><h1>Review</h1>
<label>Reviewer <input id="who" autocomplete="name" maxlength="100"></label>
<form id="token-field" hidden>
<input type="text" name="username" autocomplete="username" hidden>
<label>Token <input id="token" type="password" autocomplete="current-password"></label></form>
<span id="done" role="status">0 labelled</span></header>
<main id="case" hidden>
<img id="picture" alt="Picture of the case" hidden>
<p id="text"></p>
<table id="facts"></table>
<h2>Which class is it?</h2>
<div id="choices"></div>
<p><label>Another class <input id="other" list="classes"></label><datalist id="classes"></datalist>
<button id="skip" type="button">Skip <kbd>n</kbd></button></p>
</main>
<p id="message" role="status">Loading.</p>
<script src="/review.js"></script>
</body>
</html>
"""

STYLE = """
:root { color-scheme: light dark; }
body { font: 17px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 0 auto; padding: 1rem; }
header { display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; align-items: baseline; }
h1 { font-size: 1.3rem; margin: 0; } h2 { font-size: 1.05rem; margin: 1rem 0 .5rem; }
input { font: inherit; padding: .3rem .5rem; max-width: 100%; box-sizing: border-box; }
img { max-width: 100%; max-height: 50vh; display: block; margin: 1rem 0; image-rendering: auto; }
#text { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 1.15rem; }
td { padding: .1rem 1rem .1rem 0; overflow-wrap: anywhere; vertical-align: top; }
#choices { display: grid; gap: .5rem; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); }
button { font: inherit; padding: .7rem; text-align: left; cursor: pointer; min-height: 48px; }
kbd { float: right; opacity: .6; border: 1px solid; border-radius: 4px; padding: 0 .4rem; }
[hidden] { display: none !important; }
"""

SCRIPT = """'use strict';
const part = (id) => document.getElementById(id);
const headers = () => {
  const token = part('token').value;
  return token ? {'Authorization': 'Bearer ' + token} : {};
};
let current = null, after = 0, labelled = 0, busy = false;

async function ask(path, options = {}) {
  const answer = await fetch(path, {...options, headers: {...headers(), ...(options.headers || {})}});
  if (answer.status === 401) part('token-field').hidden = false;
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.detail);
  return body;
}

function say(text) { part('message').textContent = text; }

async function show() {
  part('case').hidden = true;
  let found;
  try { found = await ask('/review/next?after=' + after); } catch (error) { say(error.message); return; }
  current = found.case;
  document.documentElement.dataset.ready = 'true';
  if (!current) { say('No case is waiting. New ones appear here.'); setTimeout(show, 5000); return; }
  after = current.sequence;
  part('text').textContent = current.extras.text || '';
  const facts = part('facts');
  facts.replaceChildren();
  const shown = Object.entries(current.extras).filter(([name]) => name !== 'text' && name !== 'picture');
  for (const [name, value] of [['id', current.id], ...shown]) {
    const row = facts.insertRow();
    row.insertCell().textContent = name;
    row.insertCell().textContent = String(value);
  }
  part('picture').hidden = true;
  if (current.picture) await picture(current.id);
  const choices = part('choices');
  choices.replaceChildren();
  current.choices.forEach((name, place) => {
    const button = document.createElement('button');
    const key = document.createElement('kbd');
    key.textContent = place + 1;
    button.append(name, key);
    button.addEventListener('click', () => label(name));
    choices.append(button);
  });
  const classes = part('classes');
  if (!classes.childElementCount) for (const name of current.classes) {
    const option = document.createElement('option');
    option.value = name;
    classes.append(option);
  }
  part('other').value = '';
  part('case').hidden = false;
  say('');
}

async function picture(id) {
  const answer = await fetch('/review/picture?id=' + encodeURIComponent(id), {headers: headers()});
  if (!answer.ok) return;
  part('picture').src = URL.createObjectURL(await answer.blob());
  part('picture').hidden = false;
}

async function label(name) {
  if (busy || !current) return;
  busy = true;
  const body = {labels: {[current.id]: name}, by: part('who').value || null};
  try {
    await ask('/labels', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(body)});
    labelled += 1;
    part('done').textContent = labelled + ' labelled';
    await show();
  } catch (error) { say(error.message); }
  busy = false;
}

addEventListener('keydown', (event) => {
  if (event.target.tagName === 'INPUT' || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === 'n') { part('skip').click(); return; }
  const button = part('choices').children[Number(event.key) - 1];
  if (button && !part('case').hidden) button.click();
});
part('skip').addEventListener('click', () => { if (!busy) show(); });
part('other').addEventListener('change', () => {
  if (current && current.classes.includes(part('other').value)) label(part('other').value);
});
part('who').value = localStorage.getItem('reviewer') || '';
part('who').addEventListener('change', () => localStorage.setItem('reviewer', part('who').value));
part('token-field').addEventListener('submit', (event) => { event.preventDefault(); show(); });
show();
"""
