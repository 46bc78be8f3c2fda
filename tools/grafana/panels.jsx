/* Draws a dashboard with the packages of Grafana's frontend.

Theirs are: how a panel's interval comes about, how a variable is written into PromQL, the frames of tables
and histograms, transformations, field options and overrides, units, mappings, thresholds, colours, statistics,
time series, tables, stats, the frame of a panel. Ours are what Grafana has in its server or its application:
frames of plain series, the choice of variables, the grid, annotations, state timelines and heatmaps. */

import {
  FieldConfigOptionsRegistry, FieldType, TIME_SERIES_TIME_FIELD_NAME, TIME_SERIES_VALUE_FIELD_NAME, ThemeContext, applyFieldOverrides,
  cacheFieldDisplayNames, createDataFrame, createTheme, dataLinksOverrideProcessor, dateTime, displayNameOverrideProcessor,
  formattedValueToString, getDisplayValueAlignmentFactors, getFieldDisplayName,
  getFieldDisplayValues, getValueFormat, getValueFormatterIndex, identityOverrideProcessor, numberOverrideProcessor,
  rangeUtil, renderLegendFormat, standardFieldConfigEditorRegistry, standardTransformers,
  standardTransformersRegistry, thresholdsOverrideProcessor, transformDataFrame, unitOverrideProcessor,
  valueMappingsOverrideProcessor,
} from "@grafana/data";
import { interpolateQueryExpr, parseSampleValue, transformV2 } from "@grafana/prometheus";
import { BigValue, GlobalStyles, PanelChrome, TimeSeries, VizLegend, VizRepeater } from "@grafana/ui";
import { TableNG } from "@grafana/ui/unstable";
import { interpolateOranges } from "d3-scale-chromatic";
import { flushSync } from "react-dom";
import { createRoot } from "react-dom/client";
import { firstValueFrom } from "rxjs";

const SHEET = 1600, MARGIN = 16, HEADER = 84;
const COLUMNS = 24, CELL = 30, GAP = 8;
const TIME_ZONE = "utc";
const theme = createTheme({ colors: { mode: "dark" } });

/* Grafana's application registers the options of a field and the transformations; what they do is in @grafana/data. */
const PROCESSORS = {
  unit: unitOverrideProcessor, decimals: numberOverrideProcessor, min: numberOverrideProcessor,
  max: numberOverrideProcessor, noValue: identityOverrideProcessor, displayName: displayNameOverrideProcessor,
  color: identityOverrideProcessor, thresholds: thresholdsOverrideProcessor,
  mappings: valueMappingsOverrideProcessor, links: dataLinksOverrideProcessor,
};
const option = (id, process, custom) => ({
  id: custom ? `custom.${id}` : id, path: id, name: id, process, isCustom: custom, shouldApply: () => true,
});
const standardOptions = Object.entries(PROCESSORS).map(([id, process]) => option(id, process, false));
standardTransformersRegistry.setInit(() =>
  [...new Set(Object.values(standardTransformers))].map((t) => ({ id: t.id, name: t.name, transformation: async () => t })));

/* Options that a panel of Grafana has where the dashboard says nothing. */
const CUSTOM = {
  timeseries: {
    drawStyle: "line", lineInterpolation: "linear", lineWidth: 1, fillOpacity: 0, gradientMode: "none",
    showPoints: "auto", pointSize: 5, barAlignment: 0, barWidthFactor: 0.6, axisPlacement: "auto",
  },
  table: { align: "auto", cellOptions: { type: "auto" } },
};

async function ask(url, path, parameters) {
  const answer = await fetch(`${url}/api/v1/${path}?${new URLSearchParams(parameters)}`);
  const body = await answer.json();
  if (body.status !== "success") throw new Error(`${body.error} in ${parameters.query ?? path}`);
  return body.data;
}

const seconds = (time) => time.valueOf() / 1e3;

/* The variables of a dashboard: what can be chosen of each, and what was. */
class Variables {
  constructor(models, chosen) {
    this.models = new Map(models.map((model) => [model.name, model]));
    this.chosen = chosen;
    this.values = {};
  }

  async lookUp(board) {
    for (const { name, type, query, multi } of this.models.values()) {
      if (type !== "query") continue;
      const found = this.inQuery(query.query ?? query, {}).match(/^label_values\((?:(.+),)?\s*(\w+)\)$/s);
      if (!found) throw new Error(`expected label_values(...) for $${name}, got ${query.query ?? query}`);
      const [, selector, label] = found;
      this.values[name] = await ask(board.url, `label/${label}/values`, {
        ...(selector && { "match[]": selector }), start: seconds(board.range.from), end: seconds(board.range.to),
      });
      if (!multi) this.chosen[name] ??= this.values[name].slice(0, 1);
    }
  }

  text(name) {
    const { type, query } = this.models.get(name);
    if (type === "datasource") return query;
    return type === "adhoc" ? "none" : (this.chosen[name]?.join(" + ") ?? "All");
  }

  inQuery(text, builtIn) {
    return this.replace(text, builtIn, (model) => {
      const chosen = this.chosen[model.name];
      if (!chosen && model.allValue) return model.allValue;
      const values = chosen ?? this.values[model.name] ?? [];
      return interpolateQueryExpr(model.multi ? values : (values[0] ?? ""), model);
    });
  }

  inText(text) {
    return this.replace(text, {}, (model) => this.text(model.name));
  }

  replace(text, builtIn, written) {
    return text.replace(/\$(\w+)|\$\{(\w+)(?::\w+)?\}/g, (whole, plain, braced) => {
      const name = plain ?? braced;
      if (name in builtIn) return builtIn[name];
      return this.models.has(name) ? written(this.models.get(name)) : whole;
    });
  }
}

/* What Grafana's server makes of a series of Prometheus. */
function frameOf(target, { metric, value, values }, step) {
  const samples = values ?? [value];
  const { __name__ = "", ...labels } = metric;
  const pairs = Object.entries(labels).map(([name, text]) => `${name}="${text}"`);
  const legend = target.legendFormat ? renderLegendFormat(target.legendFormat, metric) : `${__name__}{${pairs}}`;
  return createDataFrame({
    refId: target.refId,
    name: legend === "{}" ? target.expr : legend,
    fields: [
      {
        name: TIME_SERIES_TIME_FIELD_NAME, type: FieldType.time,
        values: samples.map(([at]) => at * 1e3), config: { interval: step },
      },
      {
        name: TIME_SERIES_VALUE_FIELD_NAME, type: FieldType.number, labels: metric,
        values: samples.map(([, text]) => parseSampleValue(text)),
        config: { displayNameFromDS: legend === "{}" ? target.expr : legend },
      },
    ],
  });
}

/* Asks what a target asks, for so many points. */
async function answerTo(target, board, points, least) {
  const { range, url, variables, scrape } = board;
  const { interval, intervalMs } = rangeUtil.calculateInterval(range, points, least ?? scrape);
  const scrapeMs = rangeUtil.intervalToMs(scrape);
  const span = range.to.diff(range.from);
  const query = variables.inQuery(target.expr, {
    __interval: interval, __interval_ms: intervalMs,
    __rate_interval: `${Math.max(intervalMs + scrapeMs, 4 * scrapeMs)}ms`,
    __range: `${Math.round(span / 1e3)}s`, __range_s: Math.round(span / 1e3), __range_ms: span,
  });
  const step = intervalMs / 1e3;
  const aligned = (time) => Math.floor(seconds(time) / step) * step;
  const { result } = target.instant
    ? await ask(url, "query", { query, time: seconds(range.to) })
    : await ask(url, "query_range", { query, start: aligned(range.from), end: aligned(range.to), step });
  const values = result.flatMap((series) => series.values ?? [series.value]);
  board.report.queries.push({
    place: target.place, query: target.expr, series: result.length,
    numbers: values.filter(([, text]) => text !== "NaN").length,
  });
  return result.map((series) => frameOf(target, series, intervalMs));
}

/* Everything of a panel's field options that is named, held against what Grafana knows. */
function unknown(panel) {
  const found = [];
  const walk = (key, value) => {
    if (key === "unit" && !(value in getValueFormatterIndex())) found.push(`unit ${value}`);
    if (/^(color|fixedColor)$/.test(key) && typeof value === "string") {
      if (!CSS.supports("color", theme.visualization.getColorByName(value))) found.push(`colour ${value}`);
    }
    if (value?.id && "value" in value) walk(value.id, value.value);
    if (value && typeof value === "object") for (const [k, v] of Object.entries(value)) walk(k, v);
  };
  walk("", panel.fieldConfig);
  walk("", panel.options);
  for (const { id } of panel.transformations ?? []) {
    if (!standardTransformersRegistry.getIfExists(id)) found.push(`transformation ${id}`);
  }
  for (const { id } of panel.fieldConfig.overrides.flatMap((override) => override.properties)) {
    if (!(id in PROCESSORS || id.startsWith("custom."))) found.push(`field option ${id}`);
  }
  return [...new Set(found)];
}

/* What the panels of Grafana's application do before they hand a field to its packages. */
function asInTheApplication(kind, field) {
  const { custom } = field.config;
  if (kind === "table") custom.wrapText ??= custom.cellOptions?.wrapText;
  if (kind === "timeseries" && field.type === FieldType.number) {
    field.values = field.values.map((value) => (Number.isFinite(value) ? value : null));
  }
}

/* Frames as a panel gets them: answered, transformed, and with their field options. */
async function framesOf(panel, board, width) {
  const asked = panel.targets.map((target) =>
    answerTo({ ...target, place: panel.title }, board, panel.maxDataPoints ?? width, panel.interval));
  const frames = (await Promise.all(asked)).flat();
  const { data } = transformV2({ data: frames }, { targets: panel.targets }, {});
  const context = { interpolate: (text) => board.variables.inText(text) };
  const { defaults, overrides } = panel.fieldConfig;
  const custom = { ...CUSTOM[panel.type], ...defaults.custom };
  const changed = overrides.flatMap((override) => override.properties.map((property) => property.id));
  const paths = [
    ...Object.keys(custom),
    ...changed.filter((id) => id.startsWith("custom.")).map((id) => id.slice("custom.".length)),
  ];
  const found = applyFieldOverrides({
    data: await firstValueFrom(transformDataFrame(panel.transformations ?? [], data, context)),
    fieldConfig: { defaults: { ...defaults, custom }, overrides },
    fieldConfigRegistry: new FieldConfigOptionsRegistry(() => [
      ...standardOptions,
      ...[...new Set(paths)].map((path) => option(path, identityOverrideProcessor, true)),
    ]),
    replaceVariables: context.interpolate,
    theme,
    timeZone: TIME_ZONE,
  });
  cacheFieldDisplayNames(found);
  found.forEach((frame) => frame.fields.forEach((field) => asInTheApplication(panel.type, field)));
  return found;
}

function Stat({ panel, frames, board, width, height }) {
  const { options, fieldConfig } = panel;
  const values = () => getFieldDisplayValues({
    data: frames, fieldConfig, reduceOptions: options.reduceOptions, replaceVariables: (text) => text,
    sparkline: options.graphMode !== "none", theme, timeZone: TIME_ZONE,
  });
  const value = ({ value: { display, sparkline }, ...place }) => (
    <BigValue {...options} {...place} value={display} theme={theme} disableWideLayout={!options.wideLayout}
      sparkline={sparkline && { ...sparkline, timeRange: board.range }} />
  );
  return (
    <VizRepeater getValues={values} getAlignmentFactors={getDisplayValueAlignmentFactors} renderValue={value}
      width={width} height={height} source={frames} itemSpacing={3} renderCounter={0} autoGrid
      orientation={options.orientation} />
  );
}

function Table({ panel, frames, board, width, height }) {
  const { options, fieldConfig } = panel;
  return (
    <TableNG data={frames[options.frameIndex ?? 0]} width={width} height={height} timeRange={board.range}
      noHeader={!options.showHeader} showTypeIcons={options.showTypeIcons} sortBy={options.sortBy}
      cellHeight={options.cellHeight} fieldConfig={fieldConfig} enableVirtualization={false} />
  );
}

function Series({ panel, frames, board, width, height }) {
  const marked = (builder) => {
    builder.addHook("draw", (plot) => {
      for (const { from, to, color } of board.events) {
        const [left, right] = [from, to].map((time) => plot.valToPos(time, "x", true));
        plot.ctx.fillStyle = theme.visualization.getColorByName(color);
        plot.ctx.globalAlpha = 0.08;
        plot.ctx.fillRect(left, plot.bbox.top, right - left, plot.bbox.height);
        plot.ctx.globalAlpha = 0.6;
        for (const side of [left, right]) plot.ctx.fillRect(side, plot.bbox.top, 1, plot.bbox.height);
        plot.ctx.globalAlpha = 1;
      }
    });
  };
  return (
    <TimeSeries frames={frames.filter((frame) => frame.length)} width={width} height={height} options={panel.options}
      timeRange={board.range} timeZone={TIME_ZONE} legend={{ placement: "bottom", ...panel.options.legend }}>
      {marked}
    </TimeSeries>
  );
}

/* Rows of cells over time: state timelines and heatmaps, which no package of Grafana draws. */
function Cells({ rows, legend, board, width, height }) {
  const left = 8 + Math.max(...rows.map((row) => 6.5 * row.name.length));
  const bottom = 20 + (legend ? 24 : 0);
  const [from, to] = [board.range.from.valueOf(), board.range.to.valueOf()];
  const x = (time) => left + ((Math.min(Math.max(time, from), to) - from) / (to - from)) * (width - left);
  const tall = (height - bottom) / rows.length;
  const every = Math.ceil(13 / tall);
  const ticks = Array.from({ length: 6 }, (_, i) => from + ((i + 0.5) / 6) * (to - from));
  const style = { fill: theme.colors.text.primary, fontSize: 12 };
  return (
    <>
      <svg width={width} height={height - (legend ? 24 : 0)} style={style}>
        {rows.map(({ name, cells }, i) => (
          <g key={name} transform={`translate(0 ${i * tall})`}>
            {i % every === 0 && <text x={left - 6} y={tall / 2 + 4} textAnchor="end">{name}</text>}
            {cells.map((cell) => (
              <g key={cell.from}>
                <rect x={x(cell.from)} width={Math.max(x(cell.to) - x(cell.from) - 1, 1)} height={tall * 0.9}
                  fill={cell.color} fillOpacity={cell.text ? 0.7 : 1} />
                {cell.text && x(cell.to) - x(cell.from) > 7 * cell.text.length &&
                  <text x={x(cell.from) + 4} y={tall / 2 + 4}>{cell.text}</text>}
              </g>
            ))}
          </g>
        ))}
        {ticks.map((time) => (
          <text key={time} x={x(time)} y={height - bottom + 16} textAnchor="middle">
            {dateTime(time).utc().format("HH:mm:ss")}
          </text>
        ))}
      </svg>
      {legend && <VizLegend placement="bottom" displayMode="list"
        items={legend.map(([label, color]) => ({ label, color, yAxis: 1 }))} />}
    </>
  );
}

const fieldsOf = (frames) => frames.flatMap((frame) => {
  const times = frame.fields.find((field) => field.type === FieldType.time);
  return frame.fields.filter((field) => field.type === FieldType.number).map((field) => ({
    name: getFieldDisplayName(field, frame, frames), field, times: times.values, step: times.config.interval,
  }));
});

function StateTimeline({ frames, ...place }) {
  const seen = new Map();
  const rows = fieldsOf(frames).map(({ name, field, times, step }) => {
    const cells = [];
    times.forEach((from, i) => {
      const { text, color } = field.display(field.values[i]);
      seen.set(text, color);
      const last = cells.at(-1);
      if (last?.text === text && from <= last.to) last.to = from + step;
      else cells.push({ from, to: from + step, text, color });
    });
    return { name, cells };
  });
  return <Cells {...place} rows={rows} legend={[...seen]} />;
}

function Heatmap({ panel, frames, ...place }) {
  const { yAxis, filterValues, color } = panel.options;
  const fields = fieldsOf(frames);
  const most = Math.max(...fields.flatMap(({ field }) => field.values.filter(Number.isFinite)));
  const bound = (name) => formattedValueToString(getValueFormat(yAxis.unit)(parseSampleValue(name), yAxis.decimals));
  const rows = fields.map(({ name, field, times, step }) => ({
    name: Number.isFinite(parseSampleValue(name)) ? bound(name) : name,
    cells: times.flatMap((from, i) => field.values[i] > filterValues.le
      ? [{ from, to: from + step, color: interpolateOranges(1 - (field.values[i] / most) ** color.exponent) }] : []),
  }));
  return <Cells {...place} rows={rows.reverse()} />;
}

const NOTHING = { height: "100%", display: "grid", placeItems: "center", textAlign: "center" };
const KINDS = { stat: Stat, table: Table, timeseries: Series, "state-timeline": StateTimeline, heatmap: Heatmap };

/* Panels and row titles from the top, with collapsed rows opened: what is below one moves down. */
function placed(dashboard) {
  let down = 0;
  return dashboard.panels.flatMap((panel) => {
    const inside = panel.panels ?? [];
    const here = [panel, ...inside].map((p) => ({ panel: p, ...p.gridPos, y: p.gridPos.y + down }));
    if (inside.length) down += Math.max(...here.map((p) => p.y + p.h)) - here[0].y - here[0].h;
    return here;
  });
}

async function eventsOf(dashboard, board) {
  const found = [];
  for (const { name, enable, expr, step, iconColor } of dashboard.annotations.list.filter((model) => model.expr)) {
    const target = { refId: "Anno", expr, place: `annotation ${name}`, legendFormat: name };
    for (const frame of await answerTo(target, board, SHEET, step)) {
      const [times, values] = frame.fields;
      times.values.forEach((at, i) => {
        const last = found.at(-1);
        if (!enable || !(values.values[i] > 0)) return;
        if (last?.frame === frame && at - last.to <= times.config.interval) last.to = at;
        else found.push({ frame, from: at, to: at, color: iconColor });
      });
    }
  }
  return found;
}

function Header({ dashboard, board }) {
  const box = { background: theme.colors.background.primary, padding: "4px 8px", marginRight: 8 };
  const shown = [...board.variables.models.values()].filter((model) => model.hide !== 2);
  const [from, to] = [board.range.from, board.range.to].map((time) => time.utc().format("YYYY-MM-DD HH:mm:ss"));
  return (
    <header style={{ padding: MARGIN }}>
      <GlobalStyles />
      <span style={{ float: "right" }}>{from} to {to} UTC</span>
      <h4>
        {dashboard.title}
        <small style={{ color: theme.colors.text.secondary, marginLeft: MARGIN }}>
          Drawn by the packages of Grafana&apos;s frontend; in Grafana it looks a little different
        </small>
      </h4>
      {shown.map(({ name, label }) => (
        <span key={name} style={box}>
          <span style={{ color: theme.colors.text.link }}>{label}</span> {board.variables.text(name)}
        </span>
      ))}
    </header>
  );
}

/* Waits until the page is what it was ten frames ago: icons come one by one. */
async function settled() {
  await document.fonts.ready;
  for (let before = "", same = 0; same < 10; before = document.body.innerHTML) {
    await new Promise((resolve) => requestAnimationFrame(resolve));
    same = document.body.innerHTML === before ? same + 1 : 0;
  }
}

/* Draws a dashboard into the page, and reports of each panel what can be read in it.

`url` is that of Prometheus, `from` and `to` are Unix times, `scrape` is the data source's interval as 15s. */
window.drawDashboard = async (dashboard, { url, from, to, scrape, chosen }) => {
  const report = { variables: {}, queries: [], panels: [] };
  const range = { from: dateTime(from * 1e3), to: dateTime(to * 1e3) };
  range.raw = range;
  const variables = new Variables(dashboard.templating.list, { ...chosen });
  const board = { url, range, scrape, variables, report, events: [] };
  await variables.lookUp(board);
  report.variables = variables.values;
  board.events = await eventsOf(dashboard, board);
  const show = (element, style, problems) => {
    const place = document.body.appendChild(document.createElement("section"));
    Object.assign(place.style, { position: "absolute", ...style });
    const root = createRoot(place, { onUncaughtError: (error) => problems.push(String(error)) });
    flushSync(() => root.render(<ThemeContext.Provider value={theme}>{element}</ThemeContext.Provider>));
    return place;
  };
  const pixels = (SHEET - 2 * MARGIN + GAP) / COLUMNS;
  Object.assign(document.body.style, { position: "relative", width: `${SHEET}px`, overflow: "hidden" });
  show(<Header dashboard={dashboard} board={board} />, { left: 0, right: 0, top: 0 }, []);
  await Promise.all(["400", "500"].map((weight) => document.fonts.load(`${weight} 14px Inter`)));
  const shown = [];
  for (const { panel, x, y, w, h } of placed(dashboard)) {
    const [width, height] = [w * pixels - GAP, h * (CELL + GAP) - GAP];
    const style = { left: `${MARGIN + x * pixels}px`, top: `${HEADER + y * (CELL + GAP)}px`, width: `${width}px` };
    document.body.style.height = `${HEADER + (y + h) * (CELL + GAP) + GAP}px`;
    if (panel.type === "row") {
      show(<h5 style={{ lineHeight: `${CELL}px` }}>{panel.title}</h5>, style, []);
      continue;
    }
    const Kind = KINDS[panel.type];
    const problems = Kind ? unknown(panel) : [`kind of panel ${panel.type}`];
    const frames = await framesOf(panel, board, Math.floor(width));
    const empty = !frames.some((frame) => frame.length);
    const nothing = <p style={NOTHING}>{panel.fieldConfig.defaults.noValue ?? "No data"}</p>;
    const place = show(
      <PanelChrome title={variables.inText(panel.title)} description={panel.description} width={width} height={height}>
        {(wide, high) => empty && panel.type !== "stat" ? nothing
          : <Kind panel={panel} frames={frames} board={board} width={wide} height={high} />}
      </PanelChrome>, style, problems);
    shown.push({ place, title: panel.title, type: panel.type, empty, problems });
  }
  await settled();
  const texts = (place, selector) => [...place.querySelectorAll(selector)].map((found) => found.innerText);
  report.panels = shown.map(({ place, ...panel }) => ({
    ...panel, text: place.innerText, plots: place.querySelectorAll("canvas, svg > g").length,
    rows: [...place.querySelectorAll("[role=row]")].map((row) => texts(row, "[role=gridcell]")),
  }));
  return report;
};
