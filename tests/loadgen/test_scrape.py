"""Scraping a target beside the load: pages with their times, and nothing that can hurt the run."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from prony_dashboards.served import served
from prony_loadgen import scrape
from prony_loadgen.scrape import GIVE_UP, Scraped, Scraper, telling
from prony_loadgen.target import parse_target


class Pages:
    """A target that answers GETs with what it is told, and counts them by path."""

    def __init__(self, *answers: tuple[str, int, bytes]) -> None:
        self.answers = {path: (status, body) for path, status, body in answers}
        self.asked: list[str] = []
        self.enough = threading.Event()
        self.wanted = 3
        self.url = ""

    @contextmanager
    def listening(self) -> Iterator["Pages"]:
        pages = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                pages.asked.append(self.path)
                status, body = pages.answers.get(self.path, (404, b"{}"))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                if len(pages.asked) >= pages.wanted:
                    pages.enough.set()

            def log_message(self, format: str, *args: object) -> None:
                pass

        with served(Handler) as self.url:
            yield self


def scraped(pages: Pages, wanted: int = 3) -> Scraped:
    pages.wanted = wanted
    with pages.listening():
        scraper = Scraper(parse_target(pages.url), every=0.01)
        scraper.start()
        assert pages.enough.wait(30)
        return scraper.stop()


def test_pages_come_with_rising_times() -> None:
    found = scraped(Pages(("/metrics", 200, b"a 1\n")))
    times = [at for at, _ in found.texts()]
    assert {text for _, text in found.texts()} == {"a 1\n"}
    assert times == sorted(times) and len(times) >= 2
    assert (found.failed, found.why) == (0, None)


def test_trtllms_path_is_found_and_from_then_on_only_that_is_asked_for() -> None:
    pages = Pages(("/prometheus/metrics", 200, b"a 1\n"))
    found = scraped(pages, wanted=4)
    assert pages.asked[:4] == ["/metrics", *["/prometheus/metrics"] * 3]
    assert found.failed == 0


def test_a_target_without_metrics_is_given_up_with_the_reason() -> None:
    found = scraped(Pages(), wanted=2 * GIVE_UP)
    assert found.pages == ()
    assert found.failed == GIVE_UP
    assert found.why == f"given up after {GIVE_UP} failures: /metrics: HTTP 404"


def test_a_page_that_is_too_large_is_not_read_to_its_end() -> None:
    pages = Pages(("/metrics", 200, b"a" * (scrape.LARGEST + 1)))
    found = scraped(pages, wanted=2)
    assert found.pages == () and found.failed >= 1


def test_a_target_that_is_not_there_only_counts() -> None:
    scraper = Scraper(parse_target("http://127.0.0.1:9"), every=0.001)
    scraper.start()
    while scraper._failed < 3:
        threading.Event().wait(0.005)
    found = scraper.stop()
    assert found.failed >= 3 and found.pages == ()


def test_what_a_path_said_is_not_hidden_by_another_that_is_not_there() -> None:
    told = ["/metrics: no answer within 2 s", "/prometheus/metrics: HTTP 404"]
    assert telling(told) == told[0]
    assert telling(["/metrics: HTTP 404", "/prometheus/metrics: HTTP 500"]).endswith("500")
