"""The same campaign across machines, on Ray: one actor per device, cases as tasks with deadlines."""
