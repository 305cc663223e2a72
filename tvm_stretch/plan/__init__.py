"""Plans: who runs what. Data only: nothing here compiles or runs."""
