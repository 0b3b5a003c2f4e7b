"""Opset upgrades: nodes of older opsets become nodes of the newest."""
