"""Nodes of every older opset → nodes of the newest."""
