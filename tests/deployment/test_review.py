"""The review page in a real browser: labels by keyboard, on a desk and on a phone."""

import os
import sqlite3

import numpy as np
import pytest

from calibrant.deployment import DecisionLog
from tests.deployment.serving import serving

# 200 for a longer look: CALIBRANT_REVIEW_LABELS=200.
LABELS = int(os.environ.get("CALIBRANT_REVIEW_LABELS", "40"))
FACTS = [{"site": "north", "text": f"Case <b>{row}</b>"} for row in range(1000)]


def fill(client, rows, n):
    """Decide about cases; returns their decisions by id."""
    body = {"inputs": rows[:n], "ids": [f"case {row}" for row in range(n)], "extras": FACTS[:n]}
    answer = client.post("/decisions", json=body)
    assert answer.status_code == 200
    return {each["id"]: each["decision"] for each in answer.json()["decisions"]}


def test_cases_are_labelled_by_keyboard(python, model, tmp_path, chromium):
    path, rows, _ = model
    with serving(python, path, tmp_path / "log.db", "--review", "--audit", "0.2") as (client, _):
        decided = fill(client, rows, 1000)
        context = chromium.new_context(viewport={"width": 1200, "height": 900})
        page = context.new_page()
        complaints = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{client.base_url}/review")
        page.wait_for_selector("#case:not([hidden])")
        page.fill("#who", "Ada")
        page.press("#who", "Tab")
        page.evaluate("document.activeElement.blur()")
        for number in range(1, LABELS + 1):
            page.keyboard.press(str(number % 9 + 1) if page.locator("#choices button").count() > 8 else "1")
            page.wait_for_selector(f'#done:text-is("{number} labelled")')
            page.wait_for_selector("#case:not([hidden])")
        # Text of cases is shown as text.
        assert "<b>" in page.inner_text("#text")
        first = page.inner_text("#facts")
        page.keyboard.press("n")
        page.wait_for_selector("#case:not([hidden])")
        page.wait_for_timeout(500)
        assert page.inner_text("#facts") != first
        context.close()
        assert complaints == []
    with DecisionLog(tmp_path / "log.db") as log:
        (block,) = log.decisions(labelled=True)
    assert len(block) == LABELS
    kinds = [decided[name] for name in block.ids]
    # Every case that went to a person up to the last one, and about a fifth of the others.
    last = int(block.sequence[-1])
    reviewed = [name for name in list(decided)[:last] if decided[name] == "review"]
    assert kinds.count("review") == len(reviewed)
    assert 0.05 < kinds.count("auto") / (last - len(reviewed)) < 0.4
    with sqlite3.connect(tmp_path / "log.db") as connection:
        assert set(connection.execute('SELECT "by" FROM calibrant_labels')) == {("Ada",)}
    connection.close()


@pytest.mark.parametrize("width", [1200, 390])
def test_the_page_fits_and_says_nothing_about_the_decision(python, model, tmp_path, chromium, width):
    path, rows, _ = model
    with serving(python, path, tmp_path / "log.db", "--review", "--audit", "1") as (client, _):
        decided = fill(client, rows, 30)
        context = chromium.new_context(viewport={"width": width, "height": 800})
        page = context.new_page()
        page.goto(f"{client.base_url}/review")
        page.wait_for_selector("#case:not([hidden])")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        sizes = page.eval_on_selector_all("#choices button", "all => all.map(each => each.offsetHeight)")
        assert min(sizes) >= 44  # for a thumb
        context.close()
        seen, after = set(), 0
        while (case := client.get("/review/next", params={"after": after}).json()["case"]) is not None:
            assert set(case) == {"id", "sequence", "extras", "choices", "classes", "picture"}
            seen.add(case["id"])
            after = case["sequence"]
    assert {decided[name] for name in seen} == {"auto", "review"}


def test_a_picture_comes_from_its_folder_alone(python, model, tmp_path):
    path, rows, _ = model
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(b"a picture")
    (tmp_path / "secret.png").write_bytes(b"a secret")
    (tmp_path / "pictures" / "notes.txt").write_bytes(b"notes")
    names = ["a.png", "../secret.png", str(tmp_path / "secret.png"), "notes.txt", "none.png", "a" * 900 + ".png"]
    flags = ("--review", "--picture-folder", str(tmp_path / "pictures"))
    with serving(python, path, tmp_path / "log.db", *flags) as (client, _):
        extras = [{"picture": name} for name in names]
        client.post("/decisions", json={"inputs": rows[:6], "ids": list("abcdef"), "extras": extras})
        found = [client.get("/review/picture", params={"id": name}) for name in "abcdefg"]
        assert [answer.status_code for answer in found] == [200, 404, 404, 404, 404, 404, 404]
        assert (found[0].content, found[0].headers["content-type"]) == (b"a picture", "image/png")
        for after in ("x", 2**63):
            refused = client.get("/review/next", params={"after": after})
            assert (refused.status_code, list(refused.json())) == (422, ["error", "detail"])


def test_the_page_needs_a_log_and_its_data_a_token(python, calibrant, model, tmp_path):
    path, rows, _ = model
    code, _, err = calibrant("serve", path, "--no-log", "--review", "--port", 0)
    assert (code, err.count("\n")) == (2, 1)
    (tmp_path / "token").write_text("a-token-of-sufficient-length")
    with serving(python, path, tmp_path / "log.db", "--review", "--token-file", str(tmp_path / "token")) as (client, _):
        assert client.get("/review").status_code == 200
        assert client.get("/review.js").status_code == 200
        assert client.get("/review/next").status_code == 401
        bearer = {"authorization": "Bearer a-token-of-sufficient-length"}
        client.post("/decisions", json={"inputs": rows[:1]}, headers=bearer)
        assert client.get("/review/next", headers=bearer).status_code == 200


def test_the_drawn_share_does_not_depend_on_the_case():
    from calibrant.deployment.review import Review

    review = Review.__new__(Review)
    review.audit, review._key = 0.02, "key"
    share = np.mean([review.drawn(f"case-{row}") for row in range(50_000)])
    assert 0.017 < share < 0.023
