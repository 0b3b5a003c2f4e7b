"""What talks to the driver: device, memory, compiler, launches, clocks."""
