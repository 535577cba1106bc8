"""The commands of `anyaccel checkpoint`: saved graphs and checkpoints, without the frameworks that wrote them."""
