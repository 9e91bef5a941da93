"""The types in the signatures of the public names, for annotations and ``isinstance``.

What a program makes itself is imported from ``holdfast``; what it only receives, or hands on, has its type here.
"""

from holdfast.config.catalog import Catalog
from holdfast.engine.environment.environment import Environment
from holdfast.engine.environment.skills import Skill
from holdfast.engine.log.journal import PreparedRequest
from holdfast.engine.log.shortening import ShorteningOutcome
from holdfast.engine.recall import RecallAnswer
from holdfast.engine.run.run import Run
from holdfast.engine.upstream.upstream import Reply, Upstream, UpstreamRequest
from holdfast.messages.parts import ProviderSignature
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.text.paging import TextPage
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.policy_rules import PolicyRules
from holdfast.planning.settings import Settings
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.providers.errors.report import AnswerReport, ErrorReport, Verdict
from holdfast.providers.fix.fix_context import FixResult
from holdfast.providers.requests.request_body import ParsedRequest
from holdfast.providers.rules.rule import Finding, Rule
from holdfast.state.conversation_state import Counters, LastRequest, MeasuredUsage, MessageHistory, ViewState
from holdfast.state.dialect import Dialect
from holdfast.state.edits import Blob, Edit, Span
from holdfast.state.entries import CompactionEntry, Entry, RequestSetup
from holdfast.state.plan import Notice, PlanOptions
from holdfast.state.target import CacheRules, ModelLimits, Prices
from holdfast.store.base import Quota, SessionStore

__all__ = [
    "AnswerReport",
    "Blob",
    "CacheRules",
    "Catalog",
    "CompactionEntry",
    "Counters",
    "Dialect",
    "Edit",
    "Entry",
    "Environment",
    "ErrorReport",
    "Finding",
    "FixResult",
    "LastRequest",
    "MeasuredUsage",
    "MessageHistory",
    "ModelLimits",
    "Notice",
    "ParsedAnswer",
    "ParsedRequest",
    "PlanBuilder",
    "PlanOptions",
    "PolicyRules",
    "PreparedRequest",
    "Prices",
    "ProviderSignature",
    "Quota",
    "RecallAnswer",
    "Reply",
    "RequestSetup",
    "Rule",
    "Run",
    "SessionStore",
    "Settings",
    "ShorteningOutcome",
    "SizedMessage",
    "Skill",
    "Span",
    "TextPage",
    "Upstream",
    "UpstreamRequest",
    "Verdict",
    "ViewState",
]
