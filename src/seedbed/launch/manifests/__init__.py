"""Manifests: files by which engines that others run (Slurm, Kubernetes, KubeRay, SkyPilot) start a declared program.

Each engine has a file here, and templates beside it, which are read as they are written: ``{{name}}`` in one is
replaced, and nothing else happens to it.
"""
