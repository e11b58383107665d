"""Write recipes/*.toml from the defaults of the package, so that the files and the command line cannot differ."""

import json
from pathlib import Path

from calibrant.training import Recipe, named_recipes

FOLDER = Path(__file__).resolve().parents[2] / "recipes"


def text(name: str, recipe: Recipe) -> str:
    """A recipe as TOML, with the method's own settings and where they come from in its head."""
    plan = recipe.plan()
    lines = [
        f"# {recipe.method.name} on {recipe.data.name} with {recipe.model.name}.",
        f"# Run it with: calibrant train --recipe recipes/{name}.toml",
        "#",
        "# Written by docs/make/recipes.py. The method's own settings, to be changed under [method.options]:",
    ]
    width = max(len(f"{key} = {json.dumps(plan.settings[key])}") for key in plan.sources)
    for key, source in plan.sources.items():
        setting = f"{key} = {json.dumps(plan.settings[key])}"
        lines.append(f"#   {setting:<{width}}  # {source}")
    return "\n".join(line.rstrip() for line in lines) + "\n\n" + recipe.to_toml()


def files() -> dict[str, str]:
    """The content of every file in recipes/."""
    return {f"{name}.toml": text(name, recipe) for name, recipe in named_recipes().items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, content in files().items():
        (FOLDER / name).write_text(content, encoding="utf-8")
        print(f"recipes/{name}")
