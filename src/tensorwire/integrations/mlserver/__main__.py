"""``python -m tensorwire.integrations.mlserver``: MLServer's command with the integration."""

from tensorwire.integrations.mlserver import install

if __name__ == "__main__":
    install()
    from mlserver.cli.main import main

    main()
