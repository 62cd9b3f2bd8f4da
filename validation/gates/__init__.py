"""Gates: stages whose output is a verdict on a content digest. Preconditions of other stages, never their
inputs."""
