"""What setup.cfg cannot say: the extension, which nothing depends on."""

import sysconfig

from setuptools import Extension, setup

ENGINE = Extension(
    "mpicoll._engine",
    ["mpicoll/_engine.c"],
    # without a compiler programs run in Python
    optional=True,
    py_limited_api=True,
    # the bits of NumPy: no fused operations, integers wrap
    extra_compile_args=[
        "-std=c11", "-O3", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing",
        # nobody asks for floating-point exceptions: loops with choices are vectorised
        "-fno-trapping-math",
    ],  # fmt: skip
)

if sysconfig.get_config_var("Py_GIL_DISABLED"):
    # free-threaded: there is no limited API, and doors rely on the interpreter's lock
    setup()
else:
    setup(ext_modules=[ENGINE], options={"bdist_wheel": {"py_limited_api": "cp310"}})
