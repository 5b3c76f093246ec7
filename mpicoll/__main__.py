from mpicoll.cli import main

main()
