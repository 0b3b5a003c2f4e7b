"""The reference backend: one numpy function per operator."""
