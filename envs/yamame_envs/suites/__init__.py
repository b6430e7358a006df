"""Suites of other libraries as environments of this package, one file each; each needs an extra."""
