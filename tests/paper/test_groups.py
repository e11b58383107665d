from pathlib import Path

from calibrant.errors import InvalidInput
from calibrant.studies import read_records
from calibrant.training import Recipe
from paper.runs import group_records


def test_versions_of_an_own_method_stand_apart(make_record):
    def made(seed, **own_code):
        record = make_record(seed=seed)
        return record.model_copy(update={"method": "mine:f", "recipe": {**record.recipe, "own_code": own_code}})

    one, same, edited = made(0, mine="a" * 64), made(1, mine="a" * 64), made(2, mine="b" * 64)
    assert group_records([one, same])["cifar10", "resnet32"] == {"mine:f": [one, same]}
    assert group_records([one, same, edited])["cifar10", "resnet32"] == {
        "mine:f [mine aaaaaaaa]": [one, same],
        "mine:f [mine bbbbbbbb]": [edited],
    }
    assert one.model_copy(update={"recipe": {"own_code": {"mine": ""}}}).code == "mine without a file"


def test_recipes_of_the_committed_records_can_be_read():
    """A record with a setting that no longer exists is compared with no control."""
    unread = []
    for record in read_records(Path(__file__).parents[2] / "results"):
        try:
            Recipe.parse(record.recipe)
        except InvalidInput:
            unread.append(record.label)
    assert all("mixup 0.2" in label for label in unread), "migrate these records"
