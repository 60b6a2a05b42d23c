"""The flights job: a year of real flights, each with a reminder two hours before departure."""
