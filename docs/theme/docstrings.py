"""For the API pages: what mkdocstrings would not see by itself in our source."""

import re

import griffe

# From a line that starts with >>> to the next empty line.
_EXAMPLE = re.compile(r"(?m)^>>> .*\n?(?:^.+\n?)*")


class OurSource(griffe.Extension):
    def on_object(self, *, obj, **_):
        """Examples in our docstrings start at `>>>`, without a heading; here they become code blocks."""
        if not obj.is_alias and obj.docstring:
            text = obj.docstring.value
            obj.docstring.value = _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)

    def on_package(self, *, pkg, **_):
        """A function with the name of its module, as `monitoring.watch`, hides that module in Python and so here."""
        for room in pkg.modules.values():
            exported = room.exports or ()
            hidden = [name for name, module in room.modules.items() if name in exported and name in module.members]
            if hidden:
                # Other names of that module can be followed only as long as it is there.
                for member in room.members.values():
                    if member.is_alias:
                        member.resolve_target()
            for name in hidden:
                room.members[name] = griffe.Alias(name, room.members[name][name], parent=room)
