"""The checks that tools/check runs: name -> function(Tree) -> list of Finding."""

from checks import formatting, hygiene, includes, lengths, named, python_lint, words

CHECKS = {
    "format": formatting.check,
    "hygiene": hygiene.check,
    "includes": includes.check,
    "lengths": lengths.check,
    "named": named.check,
    "python": python_lint.check,
    "words": words.check,
}
