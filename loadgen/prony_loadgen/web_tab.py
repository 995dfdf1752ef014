"""Locust's web UI gains a tab: a run that goes on in, charts of it and /metrics out.

The tab is a script of ours in Locust's page, which draws SVG; nothing comes from elsewhere.
"""

import json
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from prony_loadgen.crew import Crew
from prony_loadgen.drive import Load
from prony_loadgen.telemetry import LoadMetrics

TITLE = "LLM latency"
_SCRIPT = Path(__file__).parent / "web_page" / "tab.js"
_SHOWN = 300  # points of the timeline


class WebTab:
    """The tab of one web UI. It shows the latest run."""

    def __init__(self, web_ui: Any) -> None:
        """Adds it to Locust's WebUI, before that answers its first request."""
        self._run: Load | Crew | None = None
        registry = CollectorRegistry()
        self.metrics = LoadMetrics(registry, "")
        web_ui.template_args["extended_tabs"] = [{"title": TITLE, "key": "prony"}]
        routes = Blueprint("prony", __name__, url_prefix=_base(web_ui))
        guarded = web_ui.auth_required_if_enabled

        @routes.route("/prony/tab.js")  # type: ignore[untyped-decorator, unused-ignore]
        def script() -> Response:
            return Response(_SCRIPT.read_text(encoding="utf-8"), mimetype="text/javascript")

        def live() -> Response:
            return Response(json.dumps(self._shown(), allow_nan=False), mimetype="application/json")

        def metrics() -> Response:
            return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)

        routes.add_url_rule("/prony/live", "live", guarded(live))
        routes.add_url_rule("/metrics", "metrics", guarded(metrics))
        web_ui.app.register_blueprint(routes)
        home = f"{_base(web_ui) or ''}/"

        @web_ui.app.after_request  # type: ignore[untyped-decorator, unused-ignore]
        def with_script(response: Response) -> Response:
            if request.path == home and response.mimetype == "text/html":
                page = response.get_data(as_text=True)
                ours = '<script src="./prony/tab.js" defer></script></body>'
                response.set_data(page.replace("</body>", ours))
            return response

    def show(self, run: Load | Crew) -> None:
        """From now on the tab is about this run."""
        self._run = run

    def _shown(self) -> dict[str, Any]:
        run = self._run
        if run is None:
            return {"run": None}
        settings, seen = run.settings, run.timeline.total()
        folder = run.folder
        verdict, objectives = None, settings.judge.so_far(seen)
        if run.exit_code is not None and folder is not None:
            verdict = folder.read_run().get("verdict")
        return {
            "run": settings.run_id,
            "scenario": settings.name,
            "target": settings.target.url,
            "model": settings.form.model,
            "loop": settings.loop,
            "over": run.exit_code is not None,
            "folder": None if folder is None else str(folder.path),
            "verdict": verdict,
            "objectives": objectives,
            "finished": seen.finished,
            "failed": seen.failed,
            "points": list(run.timeline.points)[-_SHOWN:],
        }


def _base(web_ui: Any) -> str | None:
    """The path under which the UI lives, where that is not the root."""
    options = web_ui.environment.parsed_options
    return (options and options.web_base_path) or None
