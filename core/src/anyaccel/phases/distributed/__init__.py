"""Distributed: one phase computed by several processes, or on several devices of one; nothing imports it without need.

What a phase that is computed by one process needs of this is `phases/process_group.py`.
"""
