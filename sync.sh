#!/bin/bash
# package of this worktree
cd /work/el; p=.venv/new/lib/python3.11/site-packages/tensorwire
cp -r src/tensorwire/. $p/
rm -rf $p/_native/plugin; mkdir -p $p/_native/plugin
(cd native/tensorflow && find . -name '*.h' -o -name '*.cc' | grep -v -E '^./(tests|fuzz|bench)/' | cpio -pdm --quiet /work/el/$p/_native/plugin)
