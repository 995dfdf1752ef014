"""The target of a command that has no scenario: its options go in, a Target comes out."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prony_loadgen.target import Target


def add_reaching(parser: argparse.ArgumentParser) -> None:
    """What it takes to reach --target."""
    add = parser.add_argument
    add("--api-key-env", metavar="VAR", help="the environment variable with the key")
    add("--ca", metavar="FILE", help="trust this authority (PEM) instead of the system's")
    add("--insecure", action="store_true", help="trust any certificate")


def target_of(args: argparse.Namespace) -> "Target":
    """Raises TargetError."""
    from prony_loadgen.endpoint import named
    from prony_loadgen.tls import TlsOptions

    tls = TlsOptions(ca=args.ca, insecure=args.insecure)
    return named(args.target, args.api_key_env, tls)
