"""What must hold for the Dockerfile. Each check yields one sentence per violation."""

import json
import re


class Dockerfile:
    """Instructions as (NAME, rest) pairs, continuation lines joined, grouped into stages."""

    def __init__(self, text):
        lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
        joined = "\n".join(lines).replace("\\\n", " ")
        pairs = [line.strip().split(None, 1) for line in joined.splitlines() if line.strip()]
        self.global_args, self.stages = [], []
        for name, rest in pairs:
            if name == "FROM":
                self.stages.append([])
            (self.stages[-1] if self.stages else self.global_args).append((name, rest))

    def values(self, stage, name):
        return [rest for instruction, rest in self.stages[stage] if instruction == name]

    def last(self, name):
        """The value that the final image has, or an empty text."""
        return (self.values(-1, name) or [""])[-1]

    @property
    def runtime_packages(self):
        """Packages that the final stage installs."""
        packages = []
        for run in self.values(-1, "RUN"):
            for command in re.findall(r"apt-get install ([^&;|]*)", run):
                packages += [word for word in command.split() if not word.startswith("-")]
        return packages

    @property
    def context_sources(self):
        """Paths of the repository that COPY reads."""
        copies = [rest.split() for stage in range(len(self.stages)) for rest in self.values(stage, "COPY")]
        return [source for words in copies if not words[0].startswith("--from") for source in words[:-1]]


def stages_share_the_base(d):
    if len(d.stages) < 2:
        yield "only one stage: the compiler is in the image"
    if not any(name == "ARG" and rest.startswith("BASE=debian:12") for name, rest in d.global_args):
        yield "ARG BASE=debian:12... is missing before the first stage"
    for stage in range(len(d.stages)):
        source = d.values(stage, "FROM")[0].split()[0]
        if source != "${BASE}":
            yield f"stage {stage} comes from {source}, not from ${{BASE}}"


def user_is_not_root(d):
    user = d.last("USER").partition(":")[0]
    if not user.isdigit() or int(user) == 0:
        yield f"USER {user!r} is not a number above 0 (runAsNonRoot cannot check a name)"


def server_is_process_one(d):
    for name in ("ENTRYPOINT", "CMD"):
        try:
            words = json.loads(d.last(name))
        except ValueError:
            words = None
        if not isinstance(words, list):
            yield f"{name} is not in exec form: signals reach a shell, not the server"
    if d.last("STOPSIGNAL") != "SIGTERM":
        yield "STOPSIGNAL is not SIGTERM"


def health_is_left_to_orchestrators(d):
    if d.last("HEALTHCHECK") != "NONE":
        yield "HEALTHCHECK is not NONE"


def ports_are_exposed(d):
    exposed = " ".join(d.values(-1, "EXPOSE")).split()
    for port in re.findall(r":(\d+)", d.last("CMD")):
        if port not in exposed:
            yield f"port {port} of CMD is not exposed"


def image_is_labelled(d):
    for label in ("title", "version", "revision"):
        if f"org.opencontainers.image.{label}=" not in d.last("LABEL"):
            yield f"label org.opencontainers.image.{label} is missing"


def runtime_stays_slim(d):
    for package in d.runtime_packages:
        if package.endswith("-dev") or package in ("build-essential", "cmake", "g++", "gcc", "git"):
            yield f"{package} is a build package in the runtime stage"
    for run in d.values(-1, "RUN"):
        if "apt-get install" in run and not ("--no-install-recommends" in run and "rm -rf /var/lib/apt/lists" in run):
            yield "the runtime stage installs recommended packages or keeps the package lists"


CHECKS = (
    stages_share_the_base,
    user_is_not_root,
    server_is_process_one,
    health_is_left_to_orchestrators,
    ports_are_exposed,
    image_is_labelled,
    runtime_stays_slim,
)


def violations(dockerfile):
    return [f"{check.__name__}: {sentence}" for check in CHECKS for sentence in check(dockerfile)]
