"""Profiles of a server: a target's hook and its files in; facts, views and tables out."""
