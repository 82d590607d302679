"""What must hold between the values of a deployment. Each check yields one sentence per violation."""

import re

from manifests import quantity_bytes

HEALTH_PATHS = {"/readyz", "/healthz"}
MARGIN_SECONDS = 15
MIN_STARTUP_SECONDS = 600
BUNDLED_MODELS = "/models/"


def grace_covers_drain(m):
    sleep = m.container["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = int(m.flags["--drain-seconds"])
    grace = m.pod["terminationGracePeriodSeconds"]
    if grace < sleep + drain + MARGIN_SECONDS:
        yield f"grace period {grace} s < preStop {sleep} s + drain {drain} s + margin {MARGIN_SECONDS} s"


def rollout_outlives_one_replica(m):
    probe = m.container["startupProbe"]
    startup = probe["periodSeconds"] * probe["failureThreshold"]
    needed = startup + m.pod["terminationGracePeriodSeconds"]
    if m.deployment["progressDeadlineSeconds"] <= needed:
        yield f"progressDeadlineSeconds must exceed startup + grace period = {needed} s"


def selectors_match_pods(m):
    selectors = [("Deployment", m.deployment["selector"]["matchLabels"])]
    selectors += [("Service", o["spec"]["selector"]) for o in m.all("Service")]
    selectors += [("NetworkPolicy", o["spec"]["podSelector"]["matchLabels"]) for o in m.all("NetworkPolicy")]
    for kind in ("PodDisruptionBudget", "PodMonitor"):
        selectors += [(kind, o["spec"]["selector"]["matchLabels"]) for o in m.all(kind)]
    spread = m.pod.get("topologySpreadConstraints", [])
    selectors += [("topologySpreadConstraints", c["labelSelector"]["matchLabels"]) for c in spread]
    for owner, selector in selectors:
        if not selector or not selector.items() <= m.pod_labels.items():
            yield f"{owner} selects {selector}, pods are labelled {m.pod_labels}"


def names_are_unique(m):
    names = [(o["kind"], o["metadata"]["name"]) for o in m.objects]
    ports = m.container["ports"]
    flags = [arg.partition("=")[0] for arg in m.container["args"] if arg.startswith("--")]
    for what, values in (
        ("object", names),
        ("port name", [p["name"] for p in ports]),
        ("port number", [p["containerPort"] for p in ports]),
        ("flag", flags),
    ):
        for value in sorted({v for v in values if values.count(v) > 1}):
            yield f"{what} {value} appears more than once"


def ports_exist(m):
    ports = {p["name"]: p["containerPort"] for p in m.container["ports"]}
    for flag, name in (("--listen", "grpc"), ("--metrics-listen", "metrics")):
        if int(m.flags[flag].rpartition(":")[2]) != ports.get(name):
            yield f"{flag}={m.flags[flag]} is not the container port {name} ({ports.get(name)})"
    used = [("Service", p["targetPort"]) for o in m.all("Service") for p in o["spec"]["ports"]]
    used += [("PodMonitor", e["port"]) for o in m.all("PodMonitor") for e in o["spec"]["podMetricsEndpoints"]]
    for policy in m.all("NetworkPolicy"):
        used += [("NetworkPolicy", p["port"]) for rule in policy["spec"]["ingress"] for p in rule["ports"]]
    for owner, name in used:
        if name not in ports:
            yield f"{owner} names port {name}, the container has {sorted(ports)}"


def probes_ask_for_health(m):
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = m.container.get(name, {}).get("httpGet")
        if not asked:
            yield f"{name} is not an HTTP probe"
            continue
        if asked["port"] != "metrics":
            yield f"{name} asks port {asked['port']}, health is on the port metrics"
        wanted = {"livenessProbe": {"/healthz"}, "readinessProbe": {"/readyz"}}.get(name, HEALTH_PATHS)
        if (asked.get("scheme", "HTTP") == "HTTPS") != ("--metrics-tls" in m.flags):
            yield f"{name} does not speak as the metrics port does"
        if asked.get("path") not in wanted:
            yield f"{name} asks {asked.get('path')!r}, expected one of {sorted(wanted)}"


def strangers_are_kept_out(m):
    """TLS and tenants from Secrets; or neither, and everything says so."""
    app_protocols = {p.get("appProtocol") for o in m.all("Service") for p in o["spec"]["ports"] if p["name"] == "grpc"}
    if "--insecure" in m.flags:
        if {"--tls-cert", "--tenants", "--metrics-tls"} & set(m.flags):
            yield "--insecure beside TLS or tenants"
        if app_protocols != {"kubernetes.io/h2c"}:
            yield f"the gRPC port is not marked as cleartext HTTP/2 but {app_protocols}"
        return
    secrets = {v["name"] for v in m.pod["volumes"] if "secret" in v}
    folders = tuple(v["mountPath"] + "/" for v in m.container["volumeMounts"] if v["name"] in secrets and v.get("readOnly"))
    for flag in ("--tls-cert", "--tls-key", "--tenants"):
        if not m.flags.get(flag, "").startswith(folders):
            yield f"{flag} is in no Secret"
    if "--metrics-tls" not in m.flags:
        yield "the metrics port speaks no TLS"
    if app_protocols != {"https"}:
        yield f"the gRPC port is not marked as TLS but {app_protocols}"
    for monitor in m.all("PodMonitor"):
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            if endpoint.get("scheme") != "https" or not endpoint.get("tlsConfig", {}).get("ca"):
                yield "metrics are scraped without TLS"


def startup_is_patient(m):
    probe = m.container["startupProbe"]
    budget = probe["periodSeconds"] * probe["failureThreshold"]
    if budget < MIN_STARTUP_SECONDS:
        yield f"startup budget {budget} s < {MIN_STARTUP_SECONDS} s: large weights do not load in time"


def pods_are_confined(m):
    pod = m.pod.get("securityContext", {})
    if pod.get("runAsNonRoot") is not True or not pod.get("runAsUser"):
        yield "pod may run as root"
    if pod.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "no seccomp profile"
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if m.pod.get(key):
            yield f"{key} is set"
    for container in m.pod["containers"] + m.pod.get("initContainers", []):
        yield from _container_is_confined(container)


def _container_is_confined(container):
    name, context = container["name"], container.get("securityContext", {})
    if context.get("allowPrivilegeEscalation") is not False or context.get("privileged"):
        yield f"container {name} may gain privileges"
    if context.get("readOnlyRootFilesystem") is not True:
        yield f"container {name} has a writable root file system"
    if context.get("capabilities") != {"drop": ["ALL"]}:
        yield f"container {name} keeps capabilities"
    if context.get("runAsNonRoot") is False or context.get("runAsUser") == 0:
        yield f"container {name} runs as root"


def pods_have_no_api_access(m):
    if m.pod.get("automountServiceAccountToken") is not False:
        yield "pod mounts a service account token"
    if m.pod.get("enableServiceLinks") is not False:
        yield "service links reach the environment"
    if m.pod.get("serviceAccountName") != m.one("ServiceAccount")["metadata"]["name"]:
        yield "pod does not use the shipped service account"


def volumes_are_bounded(m):
    volumes = {v["name"]: v for v in m.pod["volumes"]}
    mounts = {v["name"]: v for v in m.container["volumeMounts"]}
    if set(volumes) != set(mounts):
        yield f"volumes {sorted(volumes)} but mounts {sorted(mounts)}"
    if "/tmp" not in {v["mountPath"] for v in mounts.values()}:
        yield "/tmp is not writable"
    for name, volume in volumes.items():
        if "emptyDir" in volume:
            if not volume["emptyDir"].get("sizeLimit"):
                yield f"volume {name} has no size limit"
        elif "secret" in volume:
            if not mounts.get(name, {}).get("readOnly"):
                yield f"secret volume {name} is writable"
        elif "persistentVolumeClaim" not in volume:
            yield f"volume {name} is neither emptyDir, Secret nor claim"
        elif not volume["persistentVolumeClaim"].get("readOnly") or not mounts.get(name, {}).get("readOnly"):
            yield f"model volume {name} is writable"


def model_is_somewhere(m):
    model = m.flags["--model"]
    roots = [v["mountPath"].rstrip("/") + "/" for v in m.container["volumeMounts"]] + [BUNDLED_MODELS]
    if not any(model.startswith(root) for root in roots):
        yield f"--model={model} is under none of {roots}"
    if any(root != BUNDLED_MODELS and BUNDLED_MODELS.startswith(root) for root in roots):
        yield f"a volume hides the bundled model under {BUNDLED_MODELS}"


def resources_fit_the_flags(m):
    requests = m.container.get("resources", {}).get("requests", {})
    limits = m.container.get("resources", {}).get("limits", {})
    if "cpu" not in requests or "memory" not in requests or "memory" not in limits:
        yield f"requests {sorted(requests)}, limits {sorted(limits)}: cpu and memory, and a memory limit, are needed"
        return
    if requests["memory"] != limits["memory"]:
        yield "memory request and limit differ"
    if "cpu" in limits:
        yield "a CPU limit throttles steps"
    if m.flags["--threads"] != str(requests["cpu"]):
        yield f"--threads={m.flags['--threads']} but {requests['cpu']} CPUs requested"
    if 2 * int(m.flags["--kv-bytes"]) > quantity_bytes(limits["memory"]):
        yield f"--kv-bytes={m.flags['--kv-bytes']} is more than half of {limits['memory']}"
    if requests.get("nvidia.com/gpu") != limits.get("nvidia.com/gpu"):
        yield "GPU request and limit differ"


def image_is_fixed(m):
    for container in m.pod["containers"] + m.pod.get("initContainers", []):
        image = container["image"]
        tag = image.rpartition("/")[2].partition(":")[2]
        if "@sha256:" not in image and tag in ("", "latest"):
            yield f"image {image} is not fixed by tag or digest"


def image_has_digest(m):
    if not re.search(r"@sha256:[0-9a-f]{64}$", m.container["image"]):
        yield f"image {m.container['image']} is not fixed by digest"


def replicas_survive_disruption(m):
    scalers = m.all("HorizontalPodAutoscaler")
    replicas = scalers[0]["spec"]["minReplicas"] if scalers else m.deployment.get("replicas", 1)
    budget = m.one("PodDisruptionBudget")["spec"]
    if budget.get("maxUnavailable") == 0 or budget.get("minAvailable", 0) >= replicas:
        yield "the disruption budget blocks every node drain"
    rollout = m.deployment["strategy"]["rollingUpdate"]["maxUnavailable"]
    for name, unavailable in (("PodDisruptionBudget", budget.get("maxUnavailable", 0)), ("rolling update", rollout)):
        if unavailable >= replicas:
            yield f"{name} may take {unavailable} of {replicas} replicas at once"


def autoscaler_owns_the_count(m):
    for scaler in m.all("HorizontalPodAutoscaler"):
        spec = scaler["spec"]
        if spec["scaleTargetRef"]["name"] != m.one("Deployment")["metadata"]["name"]:
            yield "the autoscaler's target does not exist"
        if "replicas" in m.deployment:
            yield "the Deployment sets replicas beside an autoscaler"
        if spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] <= m.pod["terminationGracePeriodSeconds"]:
            yield "scale-down may outrun a drain"


def service_reaches_each_pod(m):
    service = m.one("Service")["spec"]
    if service.get("clusterIP") != "None":
        yield "the Service is not headless: clients would stay on one pod"


def rules(m):
    return [r for o in m.all("PrometheusRule") for group in o["spec"]["groups"] for r in group["rules"]]


def alerts_are_complete(m):
    for rule in rules(m):
        complete = rule.get("for") and rule.get("labels", {}).get("severity") and rule.get("annotations", {}).get("summary")
        if not complete:
            yield f"alert {rule.get('alert')} lacks for, severity or summary"


def alerts_fit_the_flags(m):
    alerts = {r["alert"]: r["expr"] for r in rules(m)}
    if not alerts:
        return
    waiting = int(alerts["FolioQueueSaturated"].rpartition(">")[2])
    if waiting >= int(m.flags["--max-queued-requests"]):
        yield f"FolioQueueSaturated waits for {waiting}, --max-queued-requests is {m.flags['--max-queued-requests']}"
    probe = m.container["livenessProbe"]
    patience = probe["periodSeconds"] * probe["failureThreshold"]
    if int(alerts["FolioEngineStalled"].rpartition(">")[2]) != patience:
        yield f"FolioEngineStalled does not use the liveness probe's {patience} s"


def metric_names(m):
    """Every folio_ series that an alert or the autoscaler reads, without histogram suffixes."""
    text = "\n".join(r["expr"] for r in rules(m))
    for scaler in m.all("HorizontalPodAutoscaler"):
        text += "\n" + "\n".join(metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"])
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bfolio_\w+", text)}


CHECKS = (
    grace_covers_drain,
    rollout_outlives_one_replica,
    selectors_match_pods,
    names_are_unique,
    ports_exist,
    probes_ask_for_health,
    strangers_are_kept_out,
    startup_is_patient,
    pods_are_confined,
    pods_have_no_api_access,
    volumes_are_bounded,
    model_is_somewhere,
    resources_fit_the_flags,
    image_is_fixed,
    replicas_survive_disruption,
    autoscaler_owns_the_count,
    service_reaches_each_pod,
    alerts_are_complete,
    alerts_fit_the_flags,
)


def violations(m, extra=()):
    return [f"{check.__name__}: {sentence}" for check in CHECKS + tuple(extra) for sentence in check(m)]
