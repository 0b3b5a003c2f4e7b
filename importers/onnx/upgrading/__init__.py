"""Upgrades of nodes of older opsets to the newest."""
