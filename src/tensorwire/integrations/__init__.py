"""Make other packages use this codec. Programs that use these packages only call ``install()``.

Each subpackage has ``install()``, ``uninstall()`` and ``is_installed()``. In each of them,
``convert.py`` converts between the objects of the other package and those of tensorwire, and
``patches.py`` has the functions that replace functions of the other package.
"""
