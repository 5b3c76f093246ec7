"""What setup.cfg cannot say: the extension, which nothing depends on."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
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
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
