"""Former names of modules. They are on the path of `yamame` for one version and warn when
imported.
"""
