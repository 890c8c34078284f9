#!/bin/sh
# Makes vega.js anew, from npm: what a page needs to draw Vega-Lite specifications without `eval`.
# Keep the versions those of vl-convert-python, which draws the same specifications as files, and LICENSES complete.
set -e
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
cd "$work"
echo '{"private": true}' > package.json
npm install --silent vega@6.2.0 vega-lite@6.4.1 vega-interpreter@2.3.2 esbuild@0.28.2
npm dedupe --silent
cat > entry.js <<'END'
export {View} from "vega-view";
export {parse} from "vega-parser";
export {compile} from "vega-lite";
export {expressionInterpreter} from "vega-interpreter";
import {transforms} from "vega-dataflow";
import * as data from "vega-transforms";
import * as view from "vega-view-transforms";
import * as encode from "vega-encode";
for (const each of [data, view, encode]) Object.assign(transforms, each);
END
once="--alias:vega=vega-util"  # each package once, though some ask for older ones
for name in scenegraph expression functions selections; do
  once="$once --alias:vega-$name=./node_modules/vega-$name"
done
echo '/* Vega 6.2.0 (parser, runtime, view), Vega-Lite 6.4.1 and vega-interpreter 2.3.2: see LICENSES and build.sh beside this file. */' > "$here/vega.js"
npx esbuild entry.js $once --bundle --minify --format=iife --global-name=vegaCharts \
  --legal-comments=none --target=es2022 --charset=ascii >> "$here/vega.js"
