"""The paper's own numbers, and the page that puts ours beside them. Not part of the installed package."""
