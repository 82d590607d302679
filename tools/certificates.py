"""Certificates for tests and tools."""
import subprocess


def openssl(*args):
    subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True)


def make_certificate(directory, name, *names):
    """name.pem and name.key, signed by itself, for names as OpenSSL writes them: "DNS:localhost,IP:127.0.0.1"."""
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", 1, "-subj", f"/CN={name}",
            *(part for one in names for part in ("-addext", f"subjectAltName={one}")),
            "-keyout", directory / f"{name}.key", "-out", directory / f"{name}.pem")
