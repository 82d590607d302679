"""cuBLAS for the programs of the bundle alone: they look in lib/ beside them (RPATH), nobody else does."""
import pathlib
import shutil
import site
import subprocess
import sysconfig

NAME = "libcublasLt.so.13"
TOOLKITS = ["/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib"]


def known_to_the_loader():
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")
    return ldconfig is not None and NAME in subprocess.run([ldconfig, "-p"], capture_output=True, text=True).stdout


def places():
    """Of the toolkit, and of Python packages that bring one."""
    yield from (pathlib.Path(folder, NAME) for folder in TOOLKITS)
    for packages in {sysconfig.get_path("purelib"), *site.getsitepackages()}:
        yield from pathlib.Path(packages).glob(f"nvidia/*/lib/{NAME}")


def provide(bundle):
    """Links one into the bundle if the loader would find none; says where it comes from."""
    link = bundle / "lib" / NAME
    if link.exists() or known_to_the_loader():
        return str(link.resolve()) if link.exists() else "the loader's"
    found = next((place for place in places() if place.exists()), None)
    if found is None:
        return "none: install cuBLAS 13"
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(found)
    return str(found)
