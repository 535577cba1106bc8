"""The loops that are measured, each as a careful user of its library would write it."""
