"""The interfaces of other libraries on aniso's index, so that programs written for them change one import."""
