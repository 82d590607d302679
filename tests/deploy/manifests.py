"""Rendered Kubernetes objects of one overlay, and how to get them."""

import functools
import json
import os
import pathlib
import re
import shutil
import subprocess

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = ("cpu", "gpu", "prod")
UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def quantity_bytes(text):
    """Bytes of a memory quantity such as 24Gi."""
    number, unit = re.fullmatch(r"(\d+)(Ki|Mi|Gi|Ti|)", str(text)).groups()
    return int(number) * UNITS[unit]


class Manifests:
    """The objects of one overlay. One Deployment with one container is this project's shape."""

    def __init__(self, objects):
        self.objects = objects

    def all(self, kind):
        return [o for o in self.objects if o["kind"] == kind]

    def one(self, kind):
        found = self.all(kind)
        if len(found) != 1:
            raise LookupError(f"{len(found)} objects of kind {kind}, 1 expected")
        return found[0]

    @property
    def deployment(self):
        return self.one("Deployment")["spec"]

    @property
    def pod(self):
        return self.deployment["template"]["spec"]

    @property
    def pod_labels(self):
        return self.deployment["template"]["metadata"]["labels"]

    @property
    def container(self):
        return self.pod["containers"][0]

    @property
    def flags(self):
        """The container's arguments as {flag: value}; both --flag=value and --flag value."""
        flags, name = {}, None
        for arg in self.container["args"]:
            if arg.startswith("--"):
                name, _, value = arg.partition("=")
                flags[name] = value
            else:
                flags[name] = arg
        return flags


def load(text):
    return Manifests([o for o in yaml.safe_load_all(text) if o])


def load_base_files():
    """The base as written, without kustomize: less than an overlay, for machines that cannot render."""
    base = DEPLOY / "base"
    names = yaml.safe_load((base / "kustomization.yaml").read_text())["resources"]
    return load("\n---\n".join((base / name).read_text() for name in names))


def find_kubectl():
    """(path, "") of a kubectl whose kustomize is version 5 or later, or (None, reason)."""
    kubectl = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if not kubectl:
        return None, "no kubectl"
    run = subprocess.run([kubectl, "version", "--client", "-o", "json"], capture_output=True, text=True, check=False)
    try:
        version = json.loads(run.stdout)["kustomizeVersion"]
    except (ValueError, KeyError):
        return None, f"{kubectl} does not say its kustomize version"
    if int(version.lstrip("v").split(".")[0]) < 5:
        return None, f"{kubectl} has kustomize {version}, 5 is needed"
    return kubectl, ""


@functools.cache
def render(kubectl, folder):
    """What would be applied, as text. Needs no cluster."""
    run = subprocess.run([kubectl, "kustomize", str(DEPLOY / folder)], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise RuntimeError(f"kubectl kustomize {folder}: {run.stderr}")
    return run.stdout
