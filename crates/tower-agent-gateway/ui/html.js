// What the page is written with: templates that become elements, and never HTML text.

import { h, render } from "./vendor/preact.js";
import htm from "./vendor/htm.js";
// Draws a component anew when a signal that it reads changes.
import "./vendor/signals.js";

export const html = htm.bind(h);
export { render };
export { useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact-hooks.js";
