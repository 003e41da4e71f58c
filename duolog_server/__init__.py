"""The installed server: each folder of the repository that users get, by a link.

Nothing imports these folders by their own names: a module that is loaded twice has its state twice.
"""
