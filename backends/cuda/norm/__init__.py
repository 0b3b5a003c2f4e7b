"""Normalizations with statistics in registers or shared between blocks."""
