"""The flights job: a year of real flights, each with a reminder two hours before departure.

Spark schedules the reminders and brings the news of cancelled and late flights, a server keeps
them and is killed on the way, a worker sends them, and Spark balances the books.
"""
