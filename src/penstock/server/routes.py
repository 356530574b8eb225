"""All endpoints, API by API."""

from fastapi import APIRouter

ALL: list[APIRouter] = []
